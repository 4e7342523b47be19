"""`swarm bench failover`: what a fault costs the clients that ask meanwhile.

`scenarios` lists the faults, `rig` is the mesh of real processes that they are played on, `trials`
plays them, `requester` is the process that asks all the time, `figures` judges what it recorded.
"""
