"""Benchmarks of the feature `rollout`."""
