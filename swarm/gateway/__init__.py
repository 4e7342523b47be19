"""Gateways as others of the mesh see them."""
