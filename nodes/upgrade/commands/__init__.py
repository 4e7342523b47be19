"""Commands of the feature `upgrade`."""
