"""Put a task's arithmetic into the graph, in standard operators.

    uint8 NHWC ─► Transpose, Cast, Sub, Mul ─► network
      ─► decode, NonMaxSuppression, Gather ─► results

The FP32 arithmetic is that of `shards.cameras`, operation by operation, so that boxes and scores
are equal to the bit. A softmax, a length, and boxes made of anchors (exp) are equal to FP32's
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from shards.cameras.decode import (
    CENTRE_VARIANCE,
    EACH_CLASS,
    SIZE_VARIANCE,
    cells,
    class_dtype,
    form_of,
    is_chosen,
)
from shards.cameras.task import Task
from shards.errors import ModelError
from shards.graph.source import subgraphs

# The operator set that an older model is raised to, and the oldest one whose operators are used.
_OPSET = 18
_OLDEST_OPSET = 13
_AXES_ARE_INPUTS = 18  # of ReduceMax
_ALL = 1 << 30  # boxes


def bake(model: ModelProto, task: Task) -> ModelProto:
    """The model with its task inside: input UINT8 [n, height, width, channels] of the same name,
    outputs `Task.answers`. model: in normal form, with a fixed size of its picture; it is changed.
    Raises ModelError where the model's operators are too old and cannot be raised, and for what no
    standard operator does."""
    if task.postprocess.decode == "db":
        raise ModelError("no standard operator finds the outlines of text")
    model = _raised(model)
    (picture,) = model.graph.input
    taken = {picture.name, *task.answers}
    _rename(model.graph, {name: f"{name}/network" for name in taken})
    inner = model.graph.input[0].name
    outputs = [f"{n}/network" if n in taken else n for n in task.postprocess.outputs]
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    batch = model.graph.input[0].type.tensor_type.shape.dim[0]
    first = batch.dim_value or batch.dim_param or None
    network = list(model.graph.node)
    writer = _Writer(int(_opset(model).version))
    pre = task.preprocess
    _before(writer, task, inner)
    del model.graph.node[:]
    model.graph.node.extend([*writer.take(), *network])
    # Halves are decoded as FP32 outside too.
    floats = [
        writer.cast(name, TensorProto.FLOAT)
        if kinds[name] != TensorProto.FLOAT and task.postprocess.decode != "classes"
        else name
        for name in outputs
    ]
    made = _BEHIND[task.kind](writer, task, floats, first)
    model.graph.node.extend(writer.take())
    model.graph.initializer.extend(writer.constants)
    del model.graph.input[:]
    model.graph.input.append(
        helper.make_tensor_value_info(
            pre.input, TensorProto.UINT8, [first, pre.height, pre.width, pre.channels]
        )
    )
    del model.graph.output[:]
    model.graph.output.extend(made)
    return model


class _Writer:
    """Nodes in their order, and their constants; each tensor gets a name of its own."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.constants: list[TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._count = 0

    def take(self) -> list[onnx.NodeProto]:
        """The nodes since the last time."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def constant(self, array: Any) -> str:
        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(
        self, operator: str, inputs: Sequence[str], output: str = "", **attributes: object
    ) -> str:
        """A node with one output; its name."""
        output = output or self._name()
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def add_two(
        self, operator: str, inputs: Sequence[str], **attributes: object
    ) -> tuple[str, str]:
        """A node with two outputs."""
        pair = self._name(), self._name()
        self._nodes.append(helper.make_node(operator, list(inputs), list(pair), **attributes))
        return pair

    def cast(self, name: str, kind: int, output: str = "") -> str:
        return self.add("Cast", [name], output, to=kind)

    def columns(self, name: str, begin: int, end: int, axis: int) -> str:
        bounds = [self.constant(np.array([value], np.int64)) for value in (begin, end, axis)]
        return self.add("Slice", [name, *bounds])

    def binary(self, operator: str, name: str, value: Any) -> str:
        """With an FP32 constant."""
        return self.add(operator, [name, self.constant(np.asarray(value, np.float32))])

    def _name(self) -> str:
        self._count += 1
        return f"task/{self._count}"


def _before(writer: _Writer, task: Task, output: str) -> None:
    """From bytes to what the network takes."""
    pre = task.preprocess
    shape = (1, -1, 1, 1) if pre.layout == "nchw" else (1, 1, 1, -1)
    steps: list[tuple[str, list[str], dict[str, object]]] = []
    if pre.colours == "bgr":
        steps.append(("Gather", [writer.constant(np.array([2, 1, 0], np.int64))], {"axis": 3}))
    if pre.layout == "nchw":
        steps.append(("Transpose", [], {"perm": [0, 3, 1, 2]}))
    if pre.datatype != "UINT8":
        steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
        steps.append(("Sub", [writer.constant(pre.offset.reshape(shape))], {}))
        steps.append(("Mul", [writer.constant(pre.factor.reshape(shape))], {}))
    if pre.datatype == "FP16":
        steps.append(("Cast", [], {"to": TensorProto.FLOAT16}))
    steps = steps or [("Identity", [], {})]
    name = pre.input
    for index, (operator, more, attributes) in enumerate(steps):
        last = output if index == len(steps) - 1 else ""
        name = writer.add(operator, [name, *more], last, **attributes)


def _boxes_and_scores(writer: _Writer, task: Task, outputs: list[str]) -> tuple[str, str]:
    """Boxes [1, n, 4] in shares, and scores [1, classes, n], as of `shards.cameras.decode`."""
    pre, decode = task.preprocess, form_of(task.postprocess.decode)[0]
    end = int(np.iinfo(np.int64).max)
    if decode in ("yolo-v8", "yolo-v5", "yolox"):
        head = outputs[0]
        if decode == "yolo-v8":
            scores = writer.columns(head, 4, -task.postprocess.more or end, 1)
            head = writer.add("Transpose", [writer.columns(head, 0, 4, 1)], perm=[0, 2, 1])
        else:
            objects = writer.columns(head, 4, 5, 2)
            by_class = writer.add("Mul", [writer.columns(head, 5, end, 2), objects])
            scores = writer.add("Transpose", [by_class], perm=[0, 2, 1])
        if decode == "yolox":
            head = _of_cells(writer, head, (pre.width, pre.height))
        pixels = [pre.width, pre.height, pre.width, pre.height]
        return writer.binary("Div", _corners(writer, head), pixels), scores
    if decode == "rt-detr-scores":
        pair = writer.columns(outputs[0], 0, 4, 2), writer.columns(outputs[0], 4, end, 2)
        return _corners(writer, pair[0]), writer.add("Transpose", [pair[1]], perm=[0, 2, 1])
    boxes, scores = outputs[:2]
    if decode == "detr":
        scores = writer.columns(writer.add("Softmax", [scores], axis=2), 0, -1, 2)
        return _corners(writer, boxes), writer.add("Transpose", [scores], perm=[0, 2, 1])
    if decode == "rt-detr":
        scores = writer.add("Transpose", [writer.add("Sigmoid", [scores])], perm=[0, 2, 1])
        return _corners(writer, boxes), scores
    if decode == "ssd-anchors":
        four = writer.constant(np.array([1, -1, 4], np.int64))
        anchors = writer.add("Reshape", [outputs[2], four])
        sizes = writer.columns(anchors, 2, 4, 2)
        moved = writer.binary("Mul", writer.columns(boxes, 0, 2, 2), CENTRE_VARIANCE)
        moved = writer.add("Mul", [moved, sizes])
        centres = writer.add("Add", [moved, writer.columns(anchors, 0, 2, 2)])
        grown = writer.binary("Mul", writer.columns(boxes, 2, 4, 2), SIZE_VARIANCE)
        grown = writer.add("Mul", [writer.add("Exp", [grown]), sizes])
        boxes = _corners(writer, writer.add("Concat", [centres, grown], axis=2))
    scores = writer.columns(scores, 1, end, 2)
    return boxes, writer.add("Transpose", [scores], perm=[0, 2, 1])


def _of_cells(writer: _Writer, head: str, size: tuple[int, int]) -> str:
    """Centres and sizes in pixels [1, n, 4], of steps and logarithms in YOLOX's three scales."""
    corner, stride = cells(size)
    centres = writer.binary("Add", writer.columns(head, 0, 2, 2), corner[None])
    sides = writer.add("Exp", [writer.columns(head, 2, 4, 2)])
    pair = [writer.binary("Mul", part, stride[None]) for part in (centres, sides)]
    return writer.add("Concat", pair, axis=2)


def _corners(writer: _Writer, boxes: str, axis: int = 2) -> str:
    centres = writer.columns(boxes, 0, 2, axis)
    half = writer.binary("Mul", writer.columns(boxes, 2, 4, axis), 0.5)
    pair = [writer.add("Sub", [centres, half]), writer.add("Add", [centres, half])]
    return writer.add("Concat", pair, axis=axis)


def _detections(
    writer: _Writer, task: Task, outputs: list[str], _first: object
) -> list[onnx.ValueInfoProto]:
    post = task.postprocess
    kind = _class_kind(len(task.labels))
    answers = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["found", 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["found"]),
        helper.make_tensor_value_info("classes", kind, ["found"]),
    ]
    beside = form_of(post.decode)[1]
    if beside:
        more = ["found", post.more]
        answers.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, more))
    if beside == "seg":
        parts = [1, post.more, None, None]
        answers.append(helper.make_tensor_value_info("prototypes", TensorProto.FLOAT, parts))
        writer.add("Identity", [outputs[1]], "prototypes")
    if is_chosen(post.decode):
        _end_to_end(writer, task, outputs, kind)
        return answers
    boxes, scores = _boxes_and_scores(writer, task, outputs)
    if post.decode not in EACH_CLASS:
        scores = _likeliest(writer, scores)
    # Turned boxes overlap otherwise than NonMaxSuppression says: all of them leave the graph.
    top, iou = (_ALL, 1.0) if beside == "obb" else (post.top, post.iou)
    most = writer.constant(np.array([top], np.int64))
    limits = [writer.constant(np.array([value], np.float32)) for value in (iou, post.threshold)]
    rows = writer.add("NonMaxSuppression", [boxes, scores, most, *limits])
    values = writer.add("GatherND", [scores, rows])
    found = writer.add("Shape", [values])
    values, order = writer.add_two("TopK", [values, writer.add("Min", [found, most])], axis=0)
    writer.add("Identity", [values], "scores")
    rows = writer.add("Gather", [rows, order], axis=0)
    one, two = (writer.constant(np.array(index, np.int64)) for index in (1, 2))
    flat = writer.add("Reshape", [boxes, writer.constant(np.array([-1, 4], np.int64))])
    places = writer.add("Gather", [rows, two], axis=1)
    writer.add("Gather", [flat, places], "boxes", axis=0)
    if beside:
        end = int(np.iinfo(np.int64).max)
        values = writer.columns(outputs[0], -post.more, end, 1)
        turned = writer.add("Transpose", [values], perm=[0, 2, 1])
        shape = writer.constant(np.array([-1, post.more], np.int64))
        writer.add("Gather", [writer.add("Reshape", [turned, shape]), places], "more", axis=0)
    writer.cast(writer.add("Gather", [rows, one], axis=1), kind, "classes")
    return answers


def _likeliest(writer: _Writer, scores: str) -> str:
    """Scores [1, classes, n] of a box's likeliest class, the first of equal ones; 0 for others."""
    best = writer.add("ArgMax", [scores], axis=1, keepdims=1)
    zero = writer.constant(np.float32(0))
    nought, step = (writer.constant(np.array(value, np.int64)) for value in (0, 1))
    count = writer.add("Gather", [writer.add("Shape", [scores]), step], axis=0)
    each = writer.add("Range", [nought, count, step])
    each = writer.add("Reshape", [each, writer.constant(np.array([1, -1, 1], np.int64))])
    return writer.add("Where", [writer.add("Equal", [each, best]), scores, zero])


def _end_to_end(writer: _Writer, task: Task, outputs: list[str], kind: int) -> None:
    """Boxes, scores and classes of rows that the network has chosen itself."""
    pre, post = task.preprocess, task.postprocess
    form, beside = form_of(post.decode)
    flat = writer.constant(np.array([-1], np.int64))
    if form == "boxes-scores-classes":
        two = writer.constant(np.array([2], np.int64))
        columns = [writer.add("Unsqueeze", [name, two]) for name in outputs[1:]]
        outputs = [writer.add("Concat", [outputs[0], *columns], axis=2)]
    shape = writer.constant(np.array([-1, 6 + post.more], np.int64))
    rows_of = writer.add("Reshape", [outputs[0], shape])
    scores = writer.add("Reshape", [writer.columns(rows_of, 4, 5, 1), flat])
    above = writer.binary("Greater", scores, post.threshold)
    rows = writer.add("Reshape", [writer.add("NonZero", [above]), flat])
    values = writer.add("Gather", [scores, rows], axis=0)
    most = writer.constant(np.array([post.top], np.int64))
    count = writer.add("Min", [writer.add("Shape", [values]), most])
    values, order = writer.add_two("TopK", [values, count], axis=0)
    rows = writer.add("Gather", [rows, order], axis=0)
    boxes = writer.columns(rows_of, 0, 4, 1)
    if beside == "obb" or form == "rt-detr-rows":
        boxes = _corners(writer, boxes, axis=1)
    if form != "rt-detr-rows":
        boxes = writer.binary("Div", boxes, [pre.width, pre.height, pre.width, pre.height])
    writer.add("Gather", [boxes, rows], "boxes", axis=0)
    if beside:
        more = writer.columns(rows_of, 6, 6 + post.more, 1)
        writer.add("Gather", [more, rows], "more", axis=0)
    writer.add("Identity", [values], "scores")
    classes = writer.add("Reshape", [writer.columns(rows_of, 5, 6, 1), flat])
    writer.cast(writer.add("Gather", [classes, rows], axis=0), kind, "classes")


def _classes(
    writer: _Writer, task: Task, outputs: list[str], first: object
) -> list[onnx.ValueInfoProto]:
    post = task.postprocess
    scores = writer.add("Flatten", outputs, axis=1)
    if post.decode == "logits":
        scores = writer.add("Softmax", [scores], axis=1)
    size = writer.columns(writer.add("Shape", [scores]), 1, 2, 0)
    most = writer.add("Min", [size, writer.constant(np.array([post.top], np.int64))])
    values, order = writer.add_two("TopK", [scores, most], axis=1)
    kind = _class_kind(len(task.labels))
    writer.add("Identity", [values], "scores")
    writer.cast(order, kind, "classes")
    return [
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [first, None]),
        helper.make_tensor_value_info("classes", kind, [first, None]),
    ]


def _segments(
    writer: _Writer, task: Task, outputs: list[str], first: object
) -> list[onnx.ValueInfoProto]:
    kind = _class_kind(len(task.labels))
    found = outputs[0]
    if task.postprocess.decode != "classes":
        axis = 1 if task.postprocess.decode == "argmax" else 3
        found = writer.add("ArgMax", [found], axis=axis, keepdims=0)
    writer.cast(found, kind, "classes")
    return [helper.make_tensor_value_info("classes", kind, [first, None, None])]


def _embedding(
    writer: _Writer, task: Task, outputs: list[str], first: object
) -> list[onnx.ValueInfoProto]:
    flat = writer.add("Flatten", outputs, axis=1)
    writer.add("LpNormalization", [flat], "embedding", axis=1, p=2)
    return [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [first, None])]


def _depth(
    writer: _Writer, task: Task, outputs: list[str], first: object
) -> list[onnx.ValueInfoProto]:
    writer.add("Identity", outputs, "depth")
    return [helper.make_tensor_value_info("depth", TensorProto.FLOAT, None)]


def _letters(
    writer: _Writer, task: Task, outputs: list[str], first: object
) -> list[onnx.ValueInfoProto]:
    scores = outputs[0]
    if task.postprocess.decode == "ctc-logits":
        scores = writer.add("Softmax", [scores], axis=2)
    best = _largest(writer, scores, axis=2)
    two = writer.constant(np.array([2], np.int64))
    writer.add("Squeeze", [best, two], "scores")
    kind = _class_kind(len(task.labels) + 1)
    writer.cast(writer.add("ArgMax", [scores], axis=2, keepdims=0), kind, "classes")
    return [
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [first, None]),
        helper.make_tensor_value_info("classes", kind, [first, None]),
    ]


_BEHIND = {
    "depth": _depth,
    "read": _letters,
    "detect": _detections,
    "classify": _classes,
    "segment": _segments,
    "embed": _embedding,
}


def _largest(writer: _Writer, name: str, axis: int) -> str:
    if writer.opset >= _AXES_ARE_INPUTS:
        axes = writer.constant(np.array([axis], np.int64))
        return writer.add("ReduceMax", [name, axes], keepdims=1)
    return writer.add("ReduceMax", [name], axes=[axis], keepdims=1)


def _class_kind(labels: int) -> int:
    """The ONNX type in which classes leave the graph; without labels, their number is unknown."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(class_dtype(labels or 1 << 16))))


def _opset(model: ModelProto) -> onnx.OperatorSetIdProto:
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx"):
            return opset
    raise ModelError("the model does not say which operator set it uses")


def _raised(model: ModelProto) -> ModelProto:
    """The model with operators that are new enough. Raises ModelError."""
    if _opset(model).version >= _OLDEST_OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, _OPSET)
    except Exception as error:  # the converter raises RuntimeError and its own types
        raise ModelError(f"its operators cannot be raised to opset {_OPSET}: {error}") from error


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Give tensors other names, in subgraphs that read them too."""
    for node in graph.node:
        for listed in (node.input, node.output):
            for index, name in enumerate(listed):
                listed[index] = names.get(name, name)
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                _rename(inner, names)
    for named in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        named.name = names.get(named.name, named.name)
