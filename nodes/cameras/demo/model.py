"""The detector of `swarm demo --camera`: it finds the card, then reads its digit.

Nothing is trained for it: the card is the brightest place of its size, and the digits model of
`shards.zoo` reads that place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, compose, helper, load_from_string, numpy_helper

from nodes.cameras.demo.scene import CELL, HEIGHT, PAPER, ROOM, WIDTH
from shards.cameras.task import Postprocess, Preprocess, Task
from shards.split.split import SplitResult, split
from shards.zoo import digits_model

NAME = "cards"
ROWS, COLUMNS = HEIGHT // CELL, WIDTH // CELL
PLACES = COLUMNS - 7  # of a card in a row
TASK = Task(
    "detect",
    Preprocess("pixels", COLUMNS, ROWS, colours="rgb", layout="nhwc", datatype="UINT8"),
    Postprocess("yolo-v8", ("boxes", "scores", "classes")),
    tuple("0123456789"),
    baked=True,
)


def camera_model() -> bytes:
    """UINT8 `pixels` [1, 48, 64, 3] → `boxes` FP32 [1, 4], `scores` FP32 [1], `classes` INT64 [1],
    as `shards.cameras` reads a detector with its postprocessing inside."""
    digits = load_from_string(digits_model())
    version = digits.opset_import[0].version
    graph = compose.merge_graphs(
        _front(), _fixed(digits.graph), io_map=[("image", "d/image")], outputs=["boxes", "d/logits"]
    )
    nodes = [*graph.node, *_end()]
    whole = helper.make_graph(
        nodes,
        NAME,
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, [1, ROWS, COLUMNS, 3])],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("classes", TensorProto.INT64, [1]),
        ],
        graph.initializer,
    )
    opsets = [helper.make_opsetid("", version)]
    model = helper.make_model(whole, opset_imports=opsets, ir_version=digits.ir_version)
    return bytes(model.SerializeToString())


def split_camera_model(stages: int, bandwidth: float) -> SplitResult:
    """With what the model is for."""
    result = split(camera_model(), name=NAME, stages=stages, bandwidth=bandwidth)
    return replace(result, manifest=replace(result.manifest, parts={"task": TASK.to_doc()}))


def _fixed(graph: GraphProto) -> GraphProto:
    """The digits model for one image, under names of its own."""
    own = compose.add_prefix_graph(graph, "d/")
    for value in (*own.input, *own.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return own


def _front() -> GraphProto:
    """Pixels → the card as the digits model takes it, and its place."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["gray"], axes=[3], keepdims=0),
        helper.make_node("Reshape", ["gray", "plane"], ["bright"]),
        # Above the room: half of the paper's height is enough.
        helper.make_node("Clip", ["bright", "dark", "light"], ["clipped"]),
        helper.make_node("AveragePool", ["clipped"], ["filled"], kernel_shape=[8, 8]),
        helper.make_node("Reshape", ["filled", "flat"], ["places"]),
        helper.make_node("ArgMax", ["places"], ["at"], axis=1, keepdims=0),
        helper.make_node("Div", ["at", "across"], ["row"]),
        helper.make_node("Mod", ["at", "across"], ["column"]),
        helper.make_node("Add", ["row", "eight"], ["rows"]),
        helper.make_node("Add", ["column", "eight"], ["columns"]),
        helper.make_node("Gather", ["bright", "rows"], ["strip"], axis=2),
        helper.make_node("Gather", ["strip", "columns"], ["card"], axis=3),
        helper.make_node("Sub", ["card", "paper"], ["ink"]),
        helper.make_node("Div", ["ink", "most"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "none", "all"], ["image"]),
        helper.make_node("Concat", ["column", "row", "column", "row"], ["corner"], axis=0),
        helper.make_node("Cast", ["corner"], ["cells"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["cells", "extent"], ["sides"]),
        helper.make_node("Div", ["sides", "size"], ["shares"]),
        helper.make_node("Reshape", ["shares", "one"], ["boxes"]),
    ]
    values = {
        "plane": np.array([1, 1, ROWS, COLUMNS]),
        "flat": np.array([1, -1]),
        "one": np.array([1, 4]),
        "across": np.array([PLACES]),
        "eight": np.arange(8),
        "dark": np.float32(255 * (ROOM + PAPER) / 2),
        "light": np.float32(255 * PAPER * 0.9),
        "paper": np.float32(255 * PAPER),
        "most": np.float32(255 * (1 - PAPER)),
        "none": np.float32(0),
        "all": np.float32(1),
        "extent": np.array([0, 0, 8, 8], np.float32),
        "size": np.array([COLUMNS, ROWS, COLUMNS, ROWS], np.float32),
    }
    return helper.make_graph(
        nodes,
        "front",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, [1, ROWS, COLUMNS, 3])],
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8]),
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 4]),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )


def _end() -> list[NodeProto]:
    return [
        helper.make_node("Softmax", ["d/logits"], ["likely"], axis=1),
        helper.make_node("ReduceMax", ["likely"], ["scores"], axes=[1], keepdims=0),
        helper.make_node("ArgMax", ["likely"], ["classes"], axis=1, keepdims=0),
    ]
