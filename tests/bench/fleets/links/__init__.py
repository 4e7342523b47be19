"""`swarm bench links`: features, or pictures, over links of a given rate, delay and loss."""
