"""Simulated meshes of nodes of role auto."""
