"""Commands of the feature `auto`."""
