"""`swarm up`: a mesh on this machine, with an embedded server and supervised nodes."""
