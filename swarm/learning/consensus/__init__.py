"""Agreement of parameters without a server: which of its own a node sends, and which of others' it
takes.

Pure: no clock, no socket, no task.
"""
