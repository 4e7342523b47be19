"""Whether requests may share a run: where the rows of a batch lie in each tensor of a graph.

`follow` answers it from a graph's structure, with a rule for each operator (`rules`). `rebuild`
lets shards make shapes anew instead of receiving them. Needs `onnx`.
"""
