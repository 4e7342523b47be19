"""What a model's graph, metadata and runs tell about its outputs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from onnx import ModelProto, NodeProto

from shards.cameras.seen import Said
from shards.cameras.task import MOST_LABELS, MOST_LETTERS, MOST_PIXELS
from shards.graph.graph import Graph

# They move or convert values, and change none by more than a type's rounding.
_KEEPING = frozenset(
    {"Identity", "Cast", "CastLike", "Dropout", "QuantizeLinear", "DequantizeLinear"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"}
)
# With those of ONNX Runtime's own set, which quantized models have.
SOFTMAX = frozenset({"Softmax", "QLinearSoftmax"})
SIGMOID = frozenset({"Sigmoid", "QLinearSigmoid", "HardSigmoid"})
_MOST_TEXT = 1 << 20  # characters of an entry of the metadata


def made_by(graph: Graph, operators: frozenset[str]) -> frozenset[str]:
    """The outputs whose values one of these operators makes, told through what keeps values."""
    makers: dict[str, NodeProto] = {
        name: node for node in graph.model.graph.node for name in node.output
    }
    return frozenset(name for name in graph.outputs if _maker(makers, name) in operators)


def _maker(makers: Mapping[str, NodeProto], name: str) -> str:
    """The operator that makes a tensor's values, "" for an input."""
    while (node := makers.get(name)) is not None:
        if node.op_type not in _KEEPING:
            return str(node.op_type)
        name = node.input[0]
    return ""


def said_by(model: ModelProto) -> Said:
    """What the metadata says. An entry that cannot be read is left out, and named in `notes`."""
    entries = {entry.key: entry.value for entry in model.metadata_props}
    notes: list[str] = []

    def read(key: str, reader: Callable[[object], Any], default: Any) -> Any:
        if key not in entries:
            return default
        try:
            if len(entries[key]) > _MOST_TEXT:
                raise ValueError("too long")
            return reader(ast.literal_eval(entries[key]))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            shown = entries[key][:40]
            notes.append(f"the file's metadata says {key} {shown!r}, which is not understood")
            return default

    end = " end2end" if entries.get("end2end", "") == "True" else ""
    is_ultralytics = entries.get("author", "") == "Ultralytics"
    return Said(
        task=entries.get("task", "").strip().lower(),
        labels=read("names", _names, ()),
        size=read("imgsz", _size, None),
        normalise="0..1" if is_ultralytics else "",
        stride=read("stride", _stride, 0),
        points=read("kpt_shape", _points, None),
        head=entries.get("head", "")[:MOST_LETTERS] + end,
        letters=tuple(entries.get("character", "")[:_MOST_TEXT].splitlines())[:MOST_LABELS],
        notes=tuple(notes),
    )


def _names(value: object) -> tuple[str, ...]:
    """Of {0: 'person', 1: …} or ['person', …]. Raises ValueError."""
    if isinstance(value, dict):
        if sorted(value) != list(range(len(value))):
            raise ValueError("classes are counted from 0")
        value = [value[index] for index in range(len(value))]
    if not isinstance(value, list | tuple) or len(value) > MOST_LABELS:
        raise ValueError("no list of names")
    names = tuple(str(name).strip() for name in value)
    if not all(0 < len(name) <= MOST_LETTERS for name in names):
        raise ValueError("an empty or a long name")
    return names


def _size(value: object) -> tuple[int, int]:
    """Width and height, of [height, width] or one number. Raises ValueError."""
    sides = [value, value] if isinstance(value, int) else value
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        raise ValueError("no two sides")
    height, width = sides
    if not all(isinstance(side, int) and 0 < side <= MOST_PIXELS for side in sides):
        raise ValueError("no sides in pixels")
    return width, height


def _stride(value: object) -> int:
    """The largest. Raises ValueError."""
    strides = value if isinstance(value, list | tuple) else [value]
    if not strides or not all(isinstance(each, int) and 0 < each <= 1024 for each in strides):
        raise ValueError("no pixels")
    return int(max(strides))


def _points(value: object) -> tuple[int, int]:
    """How many keypoints, and numbers of each. Raises ValueError."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("no two numbers")
    count, each = value
    if not isinstance(count, int) or not 0 < count <= 1024 or each not in (2, 3):
        raise ValueError("no keypoints")
    return count, each
