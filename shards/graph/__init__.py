"""ONNX graphs: reading, fusing, sorting, cutting. Needs `onnx` and ONNX Runtime.

`source` reads a file, `fuse` optimises the whole model once, `graph` sorts its nodes and knows
which tensors are alive where, `tensor_types` knows their types and shapes, `cuts` knows where a cut
is sensible, and `layer_range` makes a model of its own from a range of layers.
"""
