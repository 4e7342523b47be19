"""Benchmarks of the feature `auto`."""
