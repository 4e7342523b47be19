"""A guard: how far inputs of a model are from those of its calibration data."""
