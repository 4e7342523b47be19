"""Benchmarks of the feature `cameras`."""
