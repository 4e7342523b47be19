"""Commands of the feature `watch`."""
