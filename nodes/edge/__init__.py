"""The edge: it captures at a steady pace, asks the mesh, and hands results to a sink."""
