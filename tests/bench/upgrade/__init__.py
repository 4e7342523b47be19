"""Benchmarks of the feature `upgrade`."""
