"""Making a model smaller and faster: 8-bit integers, half precision, small weights.

The tools are those of ONNX Runtime. This room prepares the model for them, chooses among their
results by measuring, and says whether the result is worth having.
"""
