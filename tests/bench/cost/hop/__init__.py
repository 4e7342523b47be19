"""`swarm bench hop` and `swarm bench regression`: what the mesh adds to a request, per hop."""
