"""`swarm install`: a node as a service of systemd, with its user, unit and folders."""
