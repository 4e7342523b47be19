"""Handing over: a process of this host takes a message directly; it is stored only if need be.

A message has to be safe before its sender lets go of it. A lane costs the server, and the nodes
beside their computing, 0.3 ms of CPU a message; most messages are done within a few milliseconds.
So a stage's acknowledgement waits for the next stage's word instead, and a requester waits for its
answer as it does anyway. Only a message that is refused, or not done in good time, is stored.
`swarm/samehost/README.md` draws the states.
"""
