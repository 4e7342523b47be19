"""ONNX Runtime's own tools, prepared and called: static, dynamic, half precision, small weights.

Every function returns a new model and leaves the given one as it is. The `excluded` nodes, by name,
stay in floating point.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from shards.errors import ModelError
from shards.graph.fuse import fuse
from shards.graph.graph import Graph
from shards.graph.tensor_types import infer_types
from shards.samples import Samples

RANGES = ("min-max", "entropy", "percentile")
_METHODS = {"min-max": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
# Scales a channel are an attribute of DequantizeLinear from this operator set on.
_LEAST_OPSET = 13
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# Operators that ONNX Runtime computes on 8-bit integers, and those that pass such integers on.
# Others, such as Softmax and LayerNormalization, stay in floating point: they need its range.
_QUANTIZED = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "Relu", "Clip", "LeakyRelu"),
    *("Sigmoid", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Pad", "Resize"),
    *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split"),
)
_CHUNK = 4  # samples whose tensors are all in memory at once
_BLOCK = 32  # weights that share a scale
_INTEGER_PRODUCTS = 4  # MatMulNBits multiplies in INT8 instead of unpacking to FP32


def prepare(model: ModelProto) -> ModelProto:
    """The model in the form that the tools want, as a new message.

    The operator set is 13 or newer, constants and BatchNormalization are folded, the types of all
    tensors are noted, and every node has a name of its own. Raises ModelError.
    """
    fused = fuse(_with_opset(model))
    # What an exporter noted may be wrong, which ONNX's own inference does not forgive.
    del fused.graph.value_info[:]
    types = infer_types(Graph.of(fused))
    told = {value.name for value in (*fused.graph.input, *fused.graph.output)}
    fused.graph.value_info.extend(
        kind.value_info()
        for name, kind in types.items()
        if name not in told and kind.datatype is not None
    )
    taken: set[str] = set()
    for index, node in enumerate(fused.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}_{node.output[0]}"
        taken.add(node.name)
    return fused


def with_products(model: ModelProto) -> ModelProto:
    """The model with MatMul and Add in place of Gemm, which two of the tools leave alone."""
    from onnxruntime.quantization.onnx_model import ONNXModel

    wrapped = ONNXModel(_copy(model))
    wrapped.replace_gemm_with_matmul()
    return _of(wrapped.model)


def layers(model: ModelProto, kinds: Collection[str] = _LAYERS) -> list[str]:
    """Names of the nodes that multiply by stored weights, in order of the graph."""
    graph = Graph.of(model)
    whole = _integers(model)
    return [node.name for node in graph.nodes if _is_layer(graph, node, kinds, whole)]


def _is_layer(graph: Graph, node: NodeProto, kinds: Collection[str], whole: set[str]) -> bool:
    if node.op_type not in kinds or not graph.is_constant(node.input[1]):
        return False
    return whole.isdisjoint(node.input)


def _integers(model: ModelProto) -> set[str]:
    """Stored weights that are no floating point numbers: a product of them is quantized already,
    or counts something."""
    floating = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return {each.name for each in model.graph.initializer if each.data_type not in floating}


def _left_alone(model: ModelProto, excluded: Collection[str]) -> list[str]:
    """Names of the products that a tool must not touch."""
    layered = set(layers(model, ("MatMul",)))
    products = {node.name for node in model.graph.node if node.op_type == "MatMul"}
    return sorted({*excluded, *(products - layered)})


def _outside(model: ModelProto, quantized: Collection[str]) -> set[str]:
    """Names of the nodes that are no quantized layer, nor lie on a way from one to another.

    8-bit integers gain nothing there, and 8 bits are too few for some of these tensors, such as a
    detector's positions in a picture.
    """
    graph = Graph.of(model)
    made: set[str] = set()  # tensors that come from a quantized layer
    behind: set[str] = set()
    for node in graph.nodes:
        if node.name in quantized or not made.isdisjoint(node.input):
            made.update(node.output)
            behind.add(node.name)
    leading: set[str] = set()  # tensors that lead to one
    between: set[str] = set()
    for node in reversed(graph.nodes):
        if node.name in quantized or not leading.isdisjoint(node.output):
            leading.update(node.input)
            between.add(node.name)
    return {node.name for node in graph.nodes} - (behind & between)


def ranges(model: ModelProto, samples: Samples, method: str, done: Callable[[int], None]) -> Any:
    """The range of each tensor (`TensorsData` of ONNX Runtime), by one of `RANGES`.

    `done` is told how many samples ran since its last call. Raises ModelError.
    """
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    with _tool("calibrating"), tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, str(file))
        calibrator = create_calibrator(
            file,
            list(_QUANTIZED),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=getattr(CalibrationMethod, _METHODS[method]),
        )
        feeds = list(samples)
        for start in range(0, len(feeds), _CHUNK):
            chunk = feeds[start : start + _CHUNK]
            calibrator.collect_data(_Reader(chunk))
            done(len(chunk))
        return calibrator.compute_data()


class _Reader:
    """Feeds, as ONNX Runtime's calibration takes them."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def static(
    model: ModelProto,
    found: Any,
    *,
    per_channel: bool,
    excluded: Collection[str] = (),
) -> ModelProto:
    """Integers between the layers: activations UINT8, weights INT8. `found` are the `ranges`.

    Signed activations would be half as fast on a CPU with VNNI.
    """
    from onnxruntime.quantization import QDQQuantizer, QuantType

    left = {*excluded, *_outside(model, set(layers(model)) - set(excluded))}
    with _tool("INT8"):
        quantizer = QDQQuantizer(
            _copy(model),
            per_channel,
            False,  # reduce_range, for processors whose 16-bit sums overflow
            QuantType.QInt8,
            QuantType.QUInt8,
            found,
            [],  # the nodes to quantize: all but those that follow
            sorted(left),
            list(_QUANTIZED),
            {"MatMulConstBOnly": True},
        )
        quantizer.quantize_model()
    return _of(quantizer.model.model)


def dynamic(model: ModelProto, *, per_channel: bool, excluded: Collection[str] = ()) -> ModelProto:
    """Weights INT8, activations to UINT8 by the range that each run meets; products only."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _tool("dynamic INT8"), tempfile.TemporaryDirectory(prefix="dynamic-") as folder:
        file = Path(folder) / "dynamic.onnx"
        quantize_dynamic(
            _copy(model),
            file,
            op_types_to_quantize=["MatMul"],
            per_channel=per_channel,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_left_alone(model, excluded),
            extra_options={"MatMulConstBOnly": True},
        )
        return onnx.load(str(file))


def half(model: ModelProto, *, excluded: Collection[str] = ()) -> ModelProto:
    """Weights and features FP16; the model's inputs and outputs keep their types."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _tool("FP16"):
        return _of(
            convert_float_to_float16(
                _copy(model), keep_io_types=True, node_block_list=sorted(excluded)
            )
        )


def weights_only(model: ModelProto, *, bits: int, excluded: Collection[str] = ()) -> ModelProto:
    """The weights of products in 4 or 8 bits (MatMulNBits), 32 to a scale; features stay FP32.

    Raises ModelError where ONNX Runtime or its tool's package is missing or too old.
    """
    with _tool("small weights"):
        try:
            from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        except ImportError as error:
            raise ModelError(
                f"small weights need a package that is not here ({error.name}): "
                'pip install "swarm-mesh[quantize]"'
            ) from error
        quantizer = MatMulNBitsQuantizer(
            _copy(model),
            bits=bits,
            block_size=_BLOCK,
            is_symmetric=True,
            accuracy_level=_INTEGER_PRODUCTS,
            nodes_to_exclude=_left_alone(model, excluded),
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
    return _of(quantizer.model.model)


def _with_opset(model: ModelProto) -> ModelProto:
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if version >= _LEAST_OPSET:
        return model
    try:
        return _of(onnx.version_converter.convert_version(model, _LEAST_OPSET))
    except Exception as error:  # the converter is C++ and raises bare RuntimeErrors
        raise ModelError(
            f"the model is of operator set {version} and cannot be converted to {_LEAST_OPSET} "
            f"({_one_line(error)}): export it again with opset {_LEAST_OPSET} or newer"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _copy(model: ModelProto) -> ModelProto:
    """The tools change the message that they get."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _of(model: Any) -> ModelProto:
    assert isinstance(model, ModelProto)
    return model


@contextmanager
def _tool(work: str) -> Iterator[None]:
    """Keep a tool quiet, and turn its errors into a ModelError that says which `work` failed.

    The tools print to standard output and log through the root logger, which is not theirs.
    """
    root = logging.getLogger()
    nobody = logging.NullHandler()
    level = root.level
    root.addHandler(nobody)  # else their first line would set the program's logging up
    root.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            yield
    except ModelError:
        raise
    except Exception as error:  # the tools raise a dozen unrelated types
        raise ModelError(
            f"ONNX Runtime's tool failed at {work} ({_one_line(error)}): try another mode"
        ) from error
    finally:
        root.setLevel(level)
        root.removeHandler(nobody)
