"""Simulated shards of a language model."""
