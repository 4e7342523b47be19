"""Benchmark graphs of known shapes, with seeded weights: no download, equal bytes each time.

Every builder returns a serialized ModelProto (opset 17). `batch=None` leaves the leading axis
dynamic, named "batch". Weights are random, scaled so that activations neither die nor explode.
Hence a wrong cut or a swapped tensor shows in the output.
"""

from __future__ import annotations

from zoo.chain import chain, chain_cuts, chain_expected
from zoo.convnets import mobilenet, resnet50
from zoo.graph_writer import GraphWriter
from zoo.transformer import transformer_encoder

__all__ = [
    "chain",
    "chain_cuts",
    "chain_expected",
    "mlp",
    "mobilenet",
    "resnet50",
    "transformer_encoder",
]


def mlp(
    width: int = 256, depth: int = 4, *, classes: int = 10, batch: int | None = None, seed: int = 0
) -> bytes:
    """`depth` layers of Gemm and Relu, then a Gemm.

    Input `input` FP32 [batch, width], output `logits` FP32 [batch, classes]. Features between
    layers: FP32 [batch, width].
    """
    writer = GraphWriter("mlp", batch=batch, seed=seed)
    tensor = writer.input("input", [width])
    for layer in range(1, depth + 1):
        tensor = writer.dense(tensor, f"dense_{layer}", width, width)
        tensor = writer.add("Relu", [tensor], f"relu_{layer}")
    writer.output(writer.dense(tensor, "logits", width, classes, gain=1.0), [classes])
    return writer.to_bytes()
