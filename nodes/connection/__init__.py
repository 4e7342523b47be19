"""A node in its mesh: who it is, its connection, its gossip, its routing, its events."""
