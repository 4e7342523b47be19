"""Learning without a server, over the mesh: deltas between nodes, and the weight versions that
they become. `consensus` decides, and knows no mesh.
"""
