"""Benchmarks of the feature `learning`."""
