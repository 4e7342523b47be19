"""Edges whose sources are cameras, and the nodes that join what several of them see."""
