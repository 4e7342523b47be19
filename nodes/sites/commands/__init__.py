"""Commands of the feature `sites`."""
