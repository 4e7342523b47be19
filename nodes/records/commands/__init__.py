"""Commands of the feature `records`."""
