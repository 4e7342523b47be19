"""Running a shard on a device. Needs numpy, and the library of the runtime that is used.

`runtime` is the seam: the members of every runtime. `ort` is ONNX Runtime. `stage` is one stage
with its runtime, as a node uses it; `load` makes one from a manifest and its files. `synthetic`
makes inputs for warm-ups and self-tests, and measures how far two results are apart.
"""
