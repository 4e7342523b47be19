"""`swarm top`: a fleet in a terminal, live. The view and its source are the dashboard's."""
