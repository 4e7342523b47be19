"""Commands of the feature `guard`."""
