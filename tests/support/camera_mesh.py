"""A small model of pictures, a camera that asks it, and somebody who hears all of the mesh."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from swarm.link import LinkMessage

HEIGHT, WIDTH = 48, 64
CELL = 8
ROWS = 48 * 3 + 12 * 2 + 4 * 2 + 3  # of UltraFace with such pictures


def watched_model() -> bytes:
    """uint8 pixels [1, 48, 64, 3] → numbers; without edge layers its features are the pixels."""
    kernel = np.random.default_rng(0).normal(0, 0.1, (8, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["c"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["c", "k"], ["conv"], pads=[1] * 4),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["numbers"]),
    ]
    graph = helper.make_graph(
        nodes,
        "watched",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])],
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(kernel, "k")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def picture_model() -> bytes:
    """uint8 pixels [1, 48, 64, 3] → eight numbers."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["c0"], perm=[0, 3, 1, 2]),
    ]
    weights = []
    for at, (before, after) in enumerate([(3, 8), (8, 8), (8, 8)]):
        kernel = rng.standard_normal((after, before, 3, 3)).astype(np.float32) / 10
        weights.append(numpy_helper.from_array(kernel, f"w{at}"))
        nodes.append(helper.make_node("Conv", [f"c{at}", f"w{at}"], [f"r{at}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"r{at}"], [f"c{at + 1}"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["c3"], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["numbers"]))
    shape = [1, HEIGHT, WIDTH, 3]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.UINT8, shape)
    numbers = helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(nodes, "pictures", [pixels], [numbers], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def red_detector(bias: float = -6.0, upright: bool = False) -> bytes:
    """Boxes of the cells of 8x8 pixels that are red, in UltraFace's shapes: the rows behind those
    cells are never found. upright: it is blind to pictures whose upper edge is not green, as those
    that find faces are to turned ones."""
    down, across = HEIGHT // CELL, WIDTH // CELL
    corners = [
        [x / across, y / down, (x + 1) / across, (y + 1) / down]
        for y in range(down)
        for x in range(across)
    ]
    weights = {
        "redness": np.array([1, -0.5, -0.5], np.float32).reshape(1, 3, 1, 1),
        "column": np.array([1, -1, 1]),
        "twenty": np.float32(20),
        "bias": np.float32(bias),
        "one": np.float32(1),
        "corners": np.array([corners + [[0, 0, 1, 1]] * (ROWS - len(corners))], np.float32),
        "zero": np.float32(0),
        "padding": np.tile(np.float32([1, 0]), (1, ROWS - len(corners), 1)),
    }
    if upright:
        weights["skylike"] = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
        weights["skylike"][0, :, :CELL] = np.array([-0.5, 1, -0.5])[:, None, None] / (CELL * WIDTH)
        weights["much"], weights["flat"] = np.float32(1000), np.array([1, 1, 1])
    sky = [
        helper.make_node("Conv", ["input", "skylike"], ["sky"]),
        helper.make_node("Sub", ["sky", "one"], ["more_sky"]),
        helper.make_node("Mul", ["more_sky", "much"], ["far"]),
        helper.make_node("Min", ["far", "zero"], ["lack"]),
        helper.make_node("Reshape", ["lack", "flat"], ["lacks"]),
        helper.make_node("Add", ["logit", "lacks"], ["seen"]),
    ]
    nodes = [
        helper.make_node("Conv", ["input", "redness"], ["red"]),
        helper.make_node(
            "AveragePool", ["red"], ["cells"], kernel_shape=[CELL] * 2, strides=[CELL] * 2
        ),
        helper.make_node("Reshape", ["cells", "column"], ["each"]),
        helper.make_node("Mul", ["each", "twenty"], ["more"]),
        helper.make_node("Add", ["more", "bias"], ["logit"]),
        *(sky if upright else [helper.make_node("Identity", ["logit"], ["seen"])]),
        helper.make_node("Sigmoid", ["seen"], ["score"]),
        helper.make_node("Sub", ["one", "score"], ["rest"]),
        helper.make_node("Concat", ["rest", "score"], ["cells_scores"], axis=2),
        helper.make_node("Concat", ["cells_scores", "padding"], ["scores"], axis=1),
        # Of each box a sum with nothing, so that the boxes come from the picture.
        helper.make_node("ReduceMax", ["input"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "zero"], ["nothing"]),
        helper.make_node("Add", ["corners", "nothing"], ["boxes"]),
    ]
    shape = [1, 3, HEIGHT, WIDTH]
    graph = helper.make_graph(
        nodes,
        "red",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, ROWS, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, ROWS, 2]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


class Sink:
    """Lines of an edge's results, by a subject of their own."""

    def __init__(self, local: LocalMesh, name: str) -> None:
        self.lines: list[dict[str, Any]] = []
        local.mesh.link.subscribe(local.mesh.subjects.results(name), self._take)

    def _take(self, message: LinkMessage) -> None:
        self.lines.append(json.loads(bytes(message.data)))


class Spy:
    """Hears all subjects of the mesh, and keeps every message."""

    def __init__(self, local: LocalMesh) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._listening = local.mesh.link.subscribe("swarm.>", self._take)

    def _take(self, message: LinkMessage) -> None:
        self.messages.append((message.subject, bytes(message.data)))

    def heard(self, row: np.ndarray) -> int:
        """Messages with these pixels in them."""
        return sum(row.tobytes() in data for _, data in self.messages)

    def of(self, kind: str) -> list[bytes]:
        """Messages on `swarm.<mesh>.<kind>.…`, but empty ones."""
        return [data for subject, data in self.messages if data and subject.split(".")[2] == kind]

    def lines(self, name: str) -> list[dict[str, Any]]:
        end = f".results.{name}"
        return [json.loads(data) for subject, data in self.messages if subject.endswith(end)]


def camera(local: LocalMesh, sink: str, source: str, *flags: str, rate: float = 0) -> NodeProcess:
    """An edge that asks `watched` for the pictures of its source, and ends with it. rate: pictures
    a second, of which a busy machine drops some; 0: each, as fast as they are answered."""
    how = ["--on-full", "drop-oldest", "--rate", str(rate)] if rate else ["--on-full", "block"]
    arguments = ["--source", source, "--sink", sink, *how]
    edge = local.start("edge", "watched", *arguments, "--codec", "none", *flags)
    edge.wanted = False
    return edge
