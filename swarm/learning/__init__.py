"""Learning without a server: what a node sends of its parameters, and what it takes of others'.

Pure: no clock, no socket, no task. A driver (`swarm.services.exchange`) carries the messages.
"""
