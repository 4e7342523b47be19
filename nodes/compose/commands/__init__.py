"""Commands of the feature `compose`."""
