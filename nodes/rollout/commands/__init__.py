"""Commands of the feature `rollout`."""
