"""The feature `rollout` of the programs."""
