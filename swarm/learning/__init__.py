"""Learning without a server: what a node sends of its parameters, what it takes of others', and the
weight versions that they become.

Pure: no clock, no socket, no task; but `exchange`, `weights` and `teaching`, which carry messages.
"""
