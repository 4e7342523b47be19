"""`swarm demo --camera`: the story, its record, what the camera shows, and the model."""
