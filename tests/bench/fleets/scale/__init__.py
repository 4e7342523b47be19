"""`swarm bench scale`: what grows with nodes, models and clients."""
