"""A simulated fleet that learns."""
