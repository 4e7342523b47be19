"""Commands of the feature `gateway`."""
