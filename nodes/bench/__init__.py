"""Measuring: what a hop costs, what a pipeline yields, how the mesh grows.

Every figure is a ratio to a floor that was measured in the same run, slice by slice: absolute times
of two machines, or of two hours of one machine, cannot be compared. Nothing is imported here.
"""
