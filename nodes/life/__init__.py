"""A node from its start to its end: connect, serve what is desired, drain, leave."""
