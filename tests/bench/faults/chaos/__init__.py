"""`swarm bench chaos`: a mesh as `swarm up` makes it, asked all the time, while faults fall on it.

`schedule` draws the faults from a seed, `workload` knows the right answers, `load` asks and
compares, `play` brings the mesh up and sends the signals, `figures` judges what was recorded.
"""
