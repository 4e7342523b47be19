"""The commands `swarm` and `swarm-node`, and their options."""
