"""`swarm demo`: a mesh of several processes with a story, whose every answer is compared."""
