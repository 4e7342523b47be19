"""Weights that change while a shard serves: deltas, master weights, trainable heads, live swaps."""
