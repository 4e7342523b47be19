"""What the mesh tells of kept answers."""
