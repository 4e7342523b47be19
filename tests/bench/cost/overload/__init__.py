"""`swarm bench overload`: what happens at a multiple of the capacity, and after it."""
