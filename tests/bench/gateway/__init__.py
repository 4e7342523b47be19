"""Benchmarks of the feature `gateway`."""
