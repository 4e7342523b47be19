"""Fuse a whole model once, before it is cut.

A fusion merges neighbouring operators. A fusion of two operators on either side of a cut cannot
happen in either shard, so cutting the raw graph changes results (measured: 3e-7 relative). Fusing
the whole model first makes the shards bit-exact against the whole at the same level.
The level is BASIC, which emits standard operators only. EXTENDED emits operators that tie the
shards to one runtime.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto

from shards.errors import ModelError
from shards.graph.source import LEAST_EXTERNAL, PROTOBUF_LIMIT, normalize, weight_bytes
from shards.runtimes.ort import WEIGHTS_FOLDER
from shards.runtimes.ort_errors import reason_of

# Weights below this many bytes stay inside the file where large ones go to a file of their own.
_LARGEST_INLINE_WEIGHT = 1024


def fuse(model: ModelProto, *, limit: int = PROTOBUF_LIMIT) -> ModelProto:
    """The model after ONNX Runtime's BASIC optimisation, as a new message.

    Constants are folded, functions inlined, BatchNormalization merged into Conv. Folding may write
    a weight twice (an embedding that is also the head, turned), so the runtime's answer comes
    through an external data file from half of `limit` bytes of weights on. The question does from
    `limit` on.
    Raises ModelError with the runtime's reason when the runtime cannot load the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4  # errors are raised, and not printed too
    with tempfile.TemporaryDirectory(prefix="fuse-") as folder:
        fused_path = Path(folder) / "fused.onnx"
        options.optimized_model_filepath = str(fused_path)
        loadable: Any
        weights = weight_bytes(model)
        if 2 * weights >= limit:
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", "fused.bin"
            )
        if weights < limit:
            loadable = model.SerializeToString()
        else:
            loadable = str(Path(folder) / "whole.onnx")
            _save_external(model, Path(loadable))
        try:
            ort.InferenceSession(loadable, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # pybind raises a dozen unrelated types here
            raise ModelError(f"ONNX Runtime refuses the model: {reason_of(error)}") from error
        fused = onnx.load(str(fused_path))
    _check_fused(model, fused)
    return normalize(fused)


def fuse_on_disk(model: ModelProto, folder: Path, into: Path) -> ModelProto:
    """As `fuse`, of a model whose large weights lie in files of `folder`. Those of the result lie
    in a file of `into`, and neither are in memory."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4  # errors are raised, and not printed too
    fused_path = into / "fused.onnx"
    options.optimized_model_filepath = str(fused_path)
    for key, entry in (
        ("session.optimized_model_external_initializers_file_name", "fused.bin"),
        ("session.optimized_model_external_initializers_min_size_in_bytes", str(LEAST_EXTERNAL)),
        ("session.disable_prepacking", "1"),
        (WEIGHTS_FOLDER, str(folder)),
    ):
        options.add_session_config_entry(key, entry)
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise ModelError(f"ONNX Runtime refuses the model: {reason_of(error)}") from error
    fused = onnx.load(str(fused_path), load_external_data=False)
    for tensor in fused.graph.initializer:
        # Tables of integers are looked into.
        is_integer = tensor.data_type in (TensorProto.INT64, TensorProto.INT32)
        if is_integer and tensor.data_location == TensorProto.EXTERNAL:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(into))
            for field in ("data_location", "external_data", "doc_string"):
                tensor.ClearField(field)
    _check_fused(model, fused)
    return normalize(fused)


def _check_fused(model: ModelProto, fused: ModelProto) -> None:
    if fused.functions:
        raise ModelError(
            "the model uses local functions that the runtime did not inline: "
            "inline them first (onnx.inliner.inline_local_functions)"
        )
    _check_operators(model, fused)


def _save_external(model: ModelProto, path: Path) -> None:
    # Saving with external data changes the message; the caller's message must stay as it is.
    copy = ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, str(path), save_as_external_data=True, size_threshold=_LARGEST_INLINE_WEIGHT)


def _check_operators(before: ModelProto, after: ModelProto) -> None:
    """Raise ModelError if fusing brought in an operator that only this runtime knows."""
    allowed = {node.domain for node in before.graph.node} | {"", "ai.onnx", "ai.onnx.ml"}
    allowed |= {node.domain for function in before.functions for node in function.node}
    for node in after.graph.node:
        if node.domain not in allowed:
            raise ModelError(
                f"the runtime turned node {node.name!r} into {node.domain}::{node.op_type}, which "
                "would tie the shards to this runtime: split with another version of onnxruntime"
            )
