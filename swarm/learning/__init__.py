"""Learning without a server, over the mesh: the deltas that nodes exchange, the weight versions
that they become, and who teaches. `consensus` decides, and knows no mesh.
"""
