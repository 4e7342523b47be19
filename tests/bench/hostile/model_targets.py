"""Parsers of what describes a model, and of the model itself.

ONNX Runtime is not among them: nodes load only files whose hash a signed manifest names.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import numpy as np

from bench.hostile.target import Case, Target, json_objects
from shards.manifest import (
    Batching,
    CodecError,
    LighterModel,
    Manifest,
    SealedFile,
    Shard,
    TensorSpec,
)
from shards.weights.onnx_file import OnnxFile
from shards.weights.protobuf import bytes_field, number_field, text_field
from shards.zoo import digits_lite_model
from swarm.model import ModelInfo


def _manifest(sealed: bool = False) -> bytes:
    x = TensorSpec("x", "FP32", (-1, 8), True)
    h = TensorSpec("h", "FP32", (-1, 4), True)
    y = TensorSpec("y", "FP32", (-1, 2), True)
    digest = "ab" * 32
    first = Shard(1, 0, 3, "s1.onnx", digest, 100, (x,), (h,), (), (x,), (h,), 1.5)
    second = Shard(2, 3, 5, "s2.onnx", digest, 90, (h,), (y,), (), (h,), (y,), 0.5)
    lighter = LighterModel("lighter.onnx", digest, 50)
    made = Manifest(
        *("digits", "1", "2026-01-01T00:00:00Z", digest, 17, (x,), (y,), (first, second)),
        batching=Batching(by="structure"),
        lighter=lighter,
        codecs={"i8": CodecError(0.02, 0.001, 4), "i4": CodecError(0.3, 0.01, 4)},
        result_codecs={"i8": CodecError(0.002, 0.0001, 4)},
        extra={"examples": {"x": [1, 8]}},
    )
    if sealed:
        files = {name: SealedFile(digest, 128) for name in made.files()}
        return json.dumps(
            json.loads(made.to_json())
            | {"sealed": {n: {"sha256": f.sha256, "bytes": f.bytes} for n, f in files.items()}}
        ).encode()
    return made.to_json()


def _open_manifest(stack: ExitStack) -> Case:
    seeds = (_manifest(), _manifest(sealed=True))
    return Case(seeds, Manifest.from_json, declared=json_objects)


def _open_info(stack: ExitStack) -> Case:
    return Case((_manifest(),), ModelInfo.from_manifest, declared=json_objects)


def _small_model() -> bytes:
    """An ONNX file with a weight in each of the forms that a file may have."""
    halves = b"".join(number_field(5, int(bits)) for bits in np.ones(4, np.float16).view(np.uint16))

    def tensor(name: str, kind: int, dims: tuple[int, ...], values: bytes) -> bytes:
        shape = b"".join(number_field(1, dim) for dim in dims)
        return bytes_field(5, shape + number_field(2, kind) + text_field(8, name) + values)

    def value(number: int, name: str) -> bytes:
        return bytes_field(
            number, text_field(1, name) + bytes_field(2, bytes_field(1, b"\x08\x01"))
        )

    gemm = text_field(1, "x") + text_field(1, "w") + text_field(2, "y") + text_field(4, "Gemm")
    attribute = text_field(1, "transB") + number_field(3, 1) + number_field(20, 2)
    graph = b"".join(
        (
            bytes_field(1, gemm + bytes_field(5, attribute)),
            text_field(2, "graph"),
            tensor("w", 1, (2, 2), bytes_field(9, np.ones(4, np.float32).tobytes())),
            tensor("floats", 1, (3,), bytes_field(4, np.ones(3, np.float32).tobytes())),
            tensor("doubles", 11, (2,), bytes_field(10, np.ones(2).tobytes())),
            tensor("halves", 10, (4,), halves),
            value(11, "x"),
            value(12, "y"),
        )
    )
    return number_field(1, 9) + bytes_field(8, number_field(2, 17)) + bytes_field(7, graph)


def _open_file(stack: ExitStack) -> Case:
    def read(data: bytes) -> None:
        file = OnnxFile(data)
        names = list(file.specs)
        for name in names:
            file.weight(name)
        assert file.layers is not None
        assert file.inputs is not None
        assert file.outputs is not None
        file.rewritten(outside=names[:1], as_inputs=names[1:])

    # Of a file with a signed hash: an object for each part, of which there is one in 16 bytes.
    return Case((_small_model(), digits_lite_model()), read, declared=lambda m: 10 * len(m))


def _open_model(stack: ExitStack) -> Case:
    from shards.graph.source import read_model

    return Case((_small_model(), digits_lite_model()), lambda data: read_model(data))


def _targets() -> tuple[Target, ...]:
    always: Any = (
        Target("manifest", "json", _open_manifest),
        Target("manifest.mesh", "json", _open_info),
        Target("onnx.file", "bytes", _open_file, 0.3),
    )
    if find_spec("onnx") is None:  # a device that splits no models
        return tuple(always)
    return (*always, Target("onnx.model", "bytes", _open_model, 0.1))


TARGETS = _targets()
