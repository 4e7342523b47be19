"""`swarm top`: a fleet in a terminal, live. The picture and its source are the dashboard's."""
