"""Commands of the feature `learning`."""
