"""Fuse a whole model once, before it is cut.

A fusion that straddles a cut cannot happen in either shard, so cutting the raw graph changes
results by some 3e-7. Fusing first at BASIC makes shards at BASIC bit-exact against the whole.
BASIC emits standard operators only; EXTENDED would emit some that tie the shards to one runtime.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from shards.errors import ModelError
from shards.graph.source import PROTOBUF_LIMIT, normalize, weight_bytes


def fuse(model: ModelProto, *, limit: int = PROTOBUF_LIMIT) -> ModelProto:
    """The model after ONNX Runtime's BASIC optimisation, as a new message.

    Constants are folded, functions inlined, BatchNormalization merged into Conv. Raises ModelError
    with the runtime's reason when it cannot load the model. A model of `limit` bytes or more takes
    the way through external data files.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="fuse-") as folder:
        fused_path = Path(folder) / "fused.onnx"
        options.optimized_model_filepath = str(fused_path)
        loadable: Any
        if weight_bytes(model) < limit:
            loadable = model.SerializeToString()
        else:
            loadable = str(Path(folder) / "whole.onnx")
            _save_external(model, Path(loadable))
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", "fused.bin"
            )
        try:
            ort.InferenceSession(loadable, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # pybind raises a dozen unrelated types here
            raise ModelError(f"ONNX Runtime refuses the model: {error}") from error
        fused = onnx.load(str(fused_path))
    if fused.functions:
        raise ModelError(
            "the model uses local functions that the runtime did not inline: "
            "inline them first (onnx.inliner.inline_local_functions)"
        )
    _check_standard(model, fused)
    return normalize(fused)


def _save_external(model: ModelProto, path: Path) -> None:
    # Saving with external data rewrites the message it is given; work on a copy.
    copy = ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, str(path), save_as_external_data=True, size_threshold=1024)


def _check_standard(before: ModelProto, after: ModelProto) -> None:
    allowed = {node.domain for node in before.graph.node} | {"", "ai.onnx", "ai.onnx.ml"}
    allowed |= {node.domain for function in before.functions for node in function.node}
    for node in after.graph.node:
        if node.domain not in allowed:
            raise ModelError(
                f"the runtime turned node {node.name!r} into {node.domain}::{node.op_type}, which "
                "would tie the shards to this runtime: split with another version of onnxruntime"
            )
