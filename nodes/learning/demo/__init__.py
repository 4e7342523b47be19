"""`swarm demo --learn`: the story, its record, its plot, its attackers."""
