"""Compositions: what the mesh knows of them."""
