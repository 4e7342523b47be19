"""Benchmarks of the feature `sites`."""
