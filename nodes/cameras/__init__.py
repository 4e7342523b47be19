"""Cameras on the mesh: frames, the decision what to compute, and what may leave a device."""
