"""Small detectors with the shapes of the large ones, and random weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto
from shard_graphs import make, node, value

CELLS = (8, 16, 32)  # pixels of the picture to a cell of each scale


def yolo(version: str, size: int, classes: int, *, batch: int | str = 1, seed: int = 0) -> bytes:
    """`v8`: [1, 4 + classes, n]. `v5`: [1, 3 n, 5 + classes]. Boxes in pixels, scores 0..1."""
    rng = np.random.default_rng(seed)
    values, anchors = (4 + classes, 1) if version == "v8" else (5 + classes, 3)
    params: dict[str, np.ndarray] = {}
    nodes, flat = [], []
    for index, pixels in enumerate(CELLS):
        shape = (values * anchors, 3, pixels, pixels)
        params[f"w{index}"] = (rng.standard_normal(shape) * 2 / pixels).astype(np.float32)
        nodes.append(node("Conv", ["images", f"w{index}"], [f"c{index}"], strides=[pixels, pixels]))
        params[f"s{index}"] = np.array([0, values * anchors, -1], np.int64)
        if version == "v5":
            params[f"s{index}"] = np.array([0, values, -1], np.int64)
        nodes.append(node("Reshape", [f"c{index}", f"s{index}"], [f"f{index}"]))
        flat.append(f"f{index}")
    nodes.append(node("Concat", flat, ["raw"], axis=2))
    nodes.append(node("Sigmoid", ["raw"], ["shares"]))
    scale = np.ones((1, values, 1), np.float32)
    scale[0, :2], scale[0, 2:4] = size, size / 3
    params["scale"] = scale
    nodes.append(node("Mul", ["shares", "scale"], ["wide" if version == "v5" else "output0"]))
    if version == "v5":
        nodes.append(node("Transpose", ["wide"], ["output0"], perm=[0, 2, 1]))
    images = value("images", [batch, 3, size, size])
    return _bytes(make(nodes, [images], [value("output0", None)], params))


def ssd(size: tuple[int, int], n: int, classes: int, *, anchors: str = "", seed: int = 0) -> bytes:
    """Scores [1, n, 1 + classes] and boxes [1, n, 4]: corners in shares, or, with the name of an
    output, offsets of the constant anchors there."""
    rng = np.random.default_rng(seed)
    width, height = size
    params: dict[str, np.ndarray] = {
        "w": (rng.standard_normal((16, 3, 16, 16)) / 16).astype(np.float32),
        "scores_w": rng.standard_normal((16, n * (1 + classes))).astype(np.float32),
        "boxes_w": (rng.standard_normal((16, n * 4)) * 0.3).astype(np.float32),
        "scores_s": np.array([1, n, 1 + classes], np.int64),
        "boxes_s": np.array([1, n, 4], np.int64),
    }
    nodes = [
        node("Conv", ["input", "w"], ["c"], strides=[16, 16]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "scores_w"], ["scores_f"]),
        node("Reshape", ["scores_f", "scores_s"], ["scores_r"]),
        node("Softmax", ["scores_r"], ["scores"], axis=2),
        node("MatMul", ["f", "boxes_w"], ["boxes_f"]),
    ]
    outputs = [value("scores", None), value("boxes", None)]
    if anchors:
        params[anchors] = np.concatenate(
            [rng.random((n, 2)), 0.05 + rng.random((n, 2)) * 0.3], axis=1
        ).astype(np.float32)
        nodes.append(node("Reshape", ["boxes_f", "boxes_s"], ["boxes"]))
        outputs.append(value(anchors, [n, 4]))
    else:
        low = rng.random((n, 2)) * 0.8
        params["priors"] = np.concatenate([low, low + 0.15], axis=1)[None].astype(np.float32)
        nodes.append(node("Reshape", ["boxes_f", "boxes_s"], ["boxes_r"]))
        nodes.append(node("Add", ["boxes_r", "priors"], ["boxes"]))
    picture = value("input", [1, 3, height, width])
    return _bytes(make(nodes, [picture], outputs, params))


def backbone(
    outputs: Sequence[str], *, classes: int = 4, side: int = 32, batch: int | str = "N"
) -> bytes:
    """One of: `logits` [N, classes], `probabilities`, `vector` [N, classes, 1, 1], `map`
    [N, classes, h, w], `map-last`, `map-classes` [N, h, w]."""
    (kind,) = outputs
    rng = np.random.default_rng(1)
    params = {"w": rng.standard_normal((classes, 3, 4, 4)).astype(np.float32) / 4}
    nodes = [node("Conv", ["image", "w"], ["features"], strides=[4, 4])]
    if kind in ("logits", "probabilities", "vector"):
        nodes.append(node("GlobalAveragePool", ["features"], ["pooled"]))
        if kind != "vector":
            nodes.append(node("Flatten", ["pooled"], ["flat"]))
        if kind == "probabilities":
            nodes.append(node("Softmax", ["flat"], ["out"], axis=1))
        else:
            nodes.append(node("Identity", ["pooled" if kind == "vector" else "flat"], ["out"]))
    elif kind == "map":
        nodes.append(node("Identity", ["features"], ["out"]))
    elif kind == "map-last":
        nodes.append(node("Transpose", ["features"], ["out"], perm=[0, 2, 3, 1]))
    else:
        nodes.append(node("ArgMax", ["features"], ["out"], axis=1, keepdims=0))
    kinds = {"map-classes": 7}
    image = value("image", [batch, 3, side, side])
    return _bytes(make(nodes, [image], [value("out", None, kinds.get(kind, 1))], params))


def _bytes(model: ModelProto) -> bytes:
    return bytes(model.SerializeToString())
