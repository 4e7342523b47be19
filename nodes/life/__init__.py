"""A node from its start to its end: connect, announce, follow, take over, drain, leave."""
