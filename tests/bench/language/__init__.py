"""Benchmarks of the feature `language`."""
