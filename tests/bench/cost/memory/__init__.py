"""`swarm bench memory`: which process of a mesh takes how much memory, and for what."""
