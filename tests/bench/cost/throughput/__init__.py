"""`swarm bench throughput`: how many requests a second a pipeline of real models answers."""
