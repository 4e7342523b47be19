"""Hostile input: mutated messages against every parser of the mesh and of the models."""
