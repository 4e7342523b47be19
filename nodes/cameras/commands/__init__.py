"""Commands of the feature `cameras`."""
