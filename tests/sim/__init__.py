"""`swarm bench gossip` and `swarm bench routing`: the simulations' reports, printed and drawn."""
