"""Benchmarks of the feature `records`."""
