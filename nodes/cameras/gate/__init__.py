"""The temporal gate: whether a frame is computed, or the last result stands for it."""
