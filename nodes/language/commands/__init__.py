"""Commands of the feature `language`."""
