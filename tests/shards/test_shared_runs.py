"""Requests share runs only where the graph keeps their rows apart, and runs confirm it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from shard_graphs import F32, floats, make, mlp, node, value, weights, yolo_like
from support.commands import said
from zoo.convnets import mobilenet, resnet50
from zoo.transformer import transformer_encoder

from shards.batch.follow import follow
from shards.errors import ManifestError, ModelError
from shards.graph.graph import Graph
from shards.graph.source import normalize
from shards.graph.tensor_types import infer_types
from shards.manifest import Batching, Manifest, write_dir
from shards.runtimes.load import load_stage
from shards.runtimes.synthetic import deviation
from shards.split.split import SplitResult, split
from shards.zoo import digits_model

Shape = Sequence[int | str]
INTEGERS = {
    "zero": [0], "one": [1], "two": [2], "minus": [-1], "flat": [-1, 4], "rows": [0, -1],
    "pairs": [-1, 8], "turned": [0, 2, -1], "scalar": 1, "count": 3, "far": [2**40], "none": 0,
}  # fmt: skip


def model_of(nodes: Sequence[NodeProto], *shapes: Shape, opset: int = 18) -> ModelProto:
    """A model from inputs x, y … [N, …] to the output of the last node."""
    stored: dict[str, Any] = {n: np.array(v, np.int64) for n, v in INTEGERS.items()}
    stored |= weights(1, w=(4, 4), k=(2, 3, 1, 1)) | {
        "ones": np.ones(4, np.float32),
        "limit": np.array(1, np.float32),
        "hundred": np.array(100, np.float32),
        "half": np.array(0.5, np.float32),
        "bias": floats(3, 4),
        "table": floats(9, 4),
        "times": np.array([2, 1], np.float32),
        "wide": np.array([1, 2], np.float32),
        "onoff": np.array([0, 1], np.float32),
        "small": np.array(0, np.int8),
        "lstm": floats(1, 8, 4),
        "again": floats(1, 8, 2),
    }
    used = {name for each in nodes for name in each.input}
    inputs = [value(n, ["N", *dims]) for n, dims in zip("xyz", shapes, strict=False)]
    kept = {name: array for name, array in stored.items() if name in used}
    return make(nodes, inputs, [value(nodes[-1].output[0], None)], kept, opset=opset)


def judged(model: ModelProto, **options: Any) -> Batching:
    options = {"stages": 1, "profile": False} | options
    return split(model.SerializeToString(), name="m", **options).manifest.batching


def chain(*steps: tuple[Any, ...]) -> list[NodeProto]:
    """Nodes one after the other from x: (operator, more inputs, attributes)."""
    nodes, last = [], "x"
    for number, (op, *rest) in enumerate(steps):
        more = next((each for each in rest if isinstance(each, list)), [])
        attributes = next((each for each in rest if isinstance(each, dict)), {})
        nodes.append(node(op, [last, *more], [f"t{number}"], **attributes))
        last = f"t{number}"
    return nodes


def bounded() -> ModelProto:
    """x / max(largest of all, 100): rows meet only where one is larger than 100."""
    nodes = [
        node("ReduceMax", ["x"], ["largest"], name="largest_of_all", keepdims=0),
        node("Max", ["largest", "hundred"], ["bound"]),
        node("Div", ["x", "bound"], ["y"]),
    ]
    return model_of(nodes, [4])


def branching() -> ModelProto:
    """If any value of the batch is above 1, all are bytes: x / 255."""
    yes = helper.make_graph([node("Mul", ["x", "half"], ["a"])], "a", [], [value("a", None)])
    no = helper.make_graph([node("Identity", ["x"], ["b"])], "b", [], [value("b", None)])
    nodes = [
        node("ReduceMax", ["x"], ["largest"], name="largest_of_all", keepdims=0),
        node("Greater", ["largest", "limit"], ["bytes"]),
        node("If", ["bytes"], ["z"], then_branch=yes, else_branch=no),
        node("Add", ["z", "half"], ["y"]),
    ]
    model = model_of(nodes, [4])
    if "half" not in {tensor.name for tensor in model.graph.initializer}:
        raise AssertionError("the branch reads what nobody stores")
    return model


@pytest.mark.parametrize("model", [bounded(), branching()], ids=["bound", "condition"])
@pytest.mark.parametrize("stages", [1, 2])
def test_rows_that_meet_at_some_scales_only_are_not_batched_and_the_node_is_named(
    model: ModelProto, stages: int
) -> None:
    batching = judged(model, stages=stages)
    assert batching.by == ""
    assert "ReduceMax 'largest_of_all': it reduces axis 0" in batching.why


MEET: dict[str, list[NodeProto]] = {
    "sum over all": chain(("ReduceSum", {"keepdims": 1}), ("Relu",)),
    "mean over rows": chain(("ReduceMean", ["zero"])),
    "softmax over rows": chain(("Softmax", {"axis": 0})),
    "running sum of rows": chain(("CumSum", ["none"])),
    "norm over rows": chain(("LpNormalization", {"axis": 0})),
    "mean and variance": chain(("MeanVarianceNormalization", {"axes": [0]})),
    "largest row": [node("TopK", ["x", "one"], ["o", "i"], axis=0)],
    "rows in pairs": chain(("Reshape", ["pairs"])),
    "turned and summed": chain(("Transpose",), ("ReduceMax", ["one"])),
    "product along rows": chain(("Transpose",), ("MatMul", ["x"])),
    "first row": chain(("Gather", ["zero"], {"axis": 0})),
    "rows reversed": chain(("Slice", ["minus", "zero", "zero", "minus"])),
    "a bias for each row": chain(("Add", ["bias"])),
    "each row beside a stored one": chain(("Concat", ["bias"], {"axis": 0})),
    "dynamic scales": [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "p"]),
        node("DequantizeLinear", ["q", "s", "p"], ["o"]),
    ],
    "random numbers": chain(("RandomUniformLike",), ("Add", ["x"])),
    "indices of rows that hold something": chain(("NonZero",), ("Cast", {"to": F32})),
    "the number of rows as a value": [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Cast", ["n"], ["f"], to=F32),
        node("Div", ["x", "f"], ["o"]),
    ],
    "the number of the row as a value": [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "none"], ["n"]),
        node("Range", ["none", "n", "scalar"], ["r"]),
        node("Cast", ["r"], ["f"], to=F32),
        node("Unsqueeze", ["f", "one"], ["u"]),
        node("Add", ["x", "u"], ["o"]),
    ],
    "rows scaled": [node("Resize", ["x", "", "times"], ["o"], mode="nearest")],
    "rows padded": chain(("Pad", ["padding"])),
    "each row and its own": [node("Einsum", ["x", "x"], ["o"], equation="ab,cb->ac")],
    "an operator that nobody knows here": chain(("Inverse",)),
}


@pytest.mark.parametrize("what", MEET)
def test_an_operator_that_mixes_rows_is_no_batch_and_is_named(what: str) -> None:
    model = model_of(MEET[what], [4])
    if what == "rows padded":
        model.graph.initializer.append(helper.make_tensor("padding", 7, [4], [1, 0, 0, 0]))
    if what == "an operator that nobody knows here":
        model = model_of(chain(("Det",)), [4, 4])
    graph = Graph.of(normalize(model))
    why = follow(graph, infer_types(graph)).why
    assert why
    assert any(each.op_type in why for each in graph.nodes) or "no rows" in why


APART: dict[str, tuple[list[NodeProto], list[int]]] = {
    "product": (chain(("MatMul", ["w"]), ("Relu",)), [4]),
    "softmax of each row": (chain(("Softmax", {"axis": -1})), [4]),
    "layer norm": (chain(("LayerNormalization", ["ones"], {"axis": -1})), [3, 4]),
    "rows merged with places, and taken apart": (
        chain(("Reshape", ["flat"]), ("MatMul", ["w"]), ("Reshape", ["back"])),
        [3, 4],
    ),
    "turned twice": (
        chain(
            ("Transpose", {"perm": [1, 0, 2]}),
            ("MatMul", ["w"]),
            ("Transpose", {"perm": [1, 0, 2]}),
        ),
        [3, 4],
    ),
    "attention": (
        chain(("Transpose", {"perm": [0, 2, 1]}), ("MatMul", ["x"]), ("Softmax",)),
        [3, 4],
    ),
    "an embedding": (
        chain(("ArgMax", {"axis": 1, "keepdims": 0}), ("GatherTable",)),
        [4],
    ),
    "convolution and pool": (
        chain(("Conv", ["k"]), ("GlobalAveragePool",), ("Flatten",)),
        [3, 5, 5],
    ),
    "a fixed scale": (
        chain(("QuantizeLinear", ["half", "small"]), ("DequantizeLinear", ["half", "small"])),
        [4],
    ),
    "columns scaled": ([node("Resize", ["x", "", "wide"], ["o"], mode="nearest")], [4]),
    "sequences": (
        [
            node("Transpose", ["x"], ["s"], perm=[1, 0, 2]),
            node("LSTM", ["s", "lstm", "again"], ["", "h"], hidden_size=2),
            node("Squeeze", ["h", "zero"], ["o"]),
        ],
        [3, 4],
    ),
    "each row's own element": (
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "none"], ["n"]),
            node("Range", ["none", "n", "scalar"], ["r"]),
            node("ArgMax", ["x"], ["a"], axis=1, keepdims=0),
            node("Unsqueeze", ["r", "one"], ["r1"]),
            node("Unsqueeze", ["a", "one"], ["a1"]),
            node("Concat", ["r1", "a1"], ["i"], axis=1),
            node("GatherND", ["x", "i"], ["o"]),
        ],
        [4],
    ),
}


@pytest.mark.parametrize("what", APART)
def test_operators_that_keep_rows_apart_are_batched(what: str) -> None:
    nodes, dims = APART[what]
    if what == "an embedding":
        nodes[-1] = node("Gather", ["table", "t0"], ["t1"])
    model = model_of(nodes, dims)
    if "back" in {name for each in nodes for name in each.input}:
        model.graph.initializer.append(helper.make_tensor("back", 7, [3], [-1, 3, 4]))
    assert judged(model) == Batching("auto", "structure", "")


OWN_NUMBER = [
    node("Shape", ["x"], ["s"]),
    node("Gather", ["s", "none"], ["n"]),
    node("Range", ["none", "n", "scalar"], ["r"]),
    node("Unsqueeze", ["r", "one"], ["r1"]),
    node("ArgMax", ["x"], ["a"], axis=1, keepdims=0),
    node("Unsqueeze", ["a", "one"], ["a1"]),
    node("Concat", ["r1", "a1"], ["i"], axis=1),
    node("ReduceMax", ["x", "one"], ["m"], keepdims=0),
    node("Neg", ["m"], ["u"]),
    node("ScatterND", ["x", "i", "u"], ["o"]),
]
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
FURTHER: dict[str, tuple[list[NodeProto], list[Shape], int]] = {
    "each row puts into itself": (OWN_NUMBER, [[4]], 18),
    "a picture by a grid": ([node("GridSample", ["x", "y"], ["o"])], [[3, 5, 5], [2, 2, 2]], 20),
    "attention": ([node("Attention", ["x", "x", "x"], ["o"], **HEADS)], [[3, 4]], 23),
    "a class as a vector": (
        [
            node("ArgMax", ["x"], ["a"], axis=1, keepdims=0),
            node("OneHot", ["a", "count", "onoff"], ["o"], axis=-1),
        ],
        [[3]],
        18,
    ),
    "a triangle": ([node("Trilu", ["x"], ["o"])], [[3, 4]], 18),
    "depth to space": ([node("DepthToSpace", ["x"], ["o"], blocksize=2)], [[4, 3, 3]], 18),
}


@pytest.mark.parametrize("what", FURTHER)
def test_operators_that_few_models_have_are_batched_where_they_keep_rows_apart(what: str) -> None:
    nodes, shapes, opset = FURTHER[what]
    model = model_of(nodes, *shapes, opset=opset)
    model.ir_version = 10
    assert judged(model) == Batching("auto", "structure", "")


def exported_transformer(layers: int = 2) -> ModelProto:
    """As exporters write it: shapes are computed once, each layer reads them; a mask is found by
    the numbers of rows, and positions are as many as the input has."""
    nodes = [
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "none"], ["n"]),
        node("Gather", ["shape", "scalar"], ["s"]),
        node("Unsqueeze", ["n", "zero"], ["n1"]),
        node("Unsqueeze", ["s", "zero"], ["s1"]),
        node("Concat", ["n1", "s1", "heads", "minus"], ["parts"], axis=0),
        node("Concat", ["n1", "s1", "minus"], ["joined"], axis=0),
        node("Slice", ["positions", "zero", "s1", "one"], ["places"]),
        node("Gather", ["table", "ids"], ["words"]),
        node("Gather", ["table", "places"], ["where"]),
        node("Add", ["words", "where"], ["h0"]),
        # The mask of each row, picked by the number of the row and the place.
        node("Range", ["none", "n", "scalar"], ["rows"]),
        node("Range", ["none", "s", "scalar"], ["columns"]),
        node("Unsqueeze", ["rows", "behind"], ["rows3"]),
        node("Unsqueeze", ["columns", "before"], ["columns3"]),
        node("Mul", ["rows3", "s1"], ["starts"]),
        node("Add", ["starts", "columns3"], ["indices"]),
        node("Reshape", ["mask", "minus"], ["all"]),
        node("Gather", ["all", "indices"], ["picked"]),
        node("Cast", ["picked"], ["kept"], to=TensorProto.BOOL),
    ]
    for layer in range(layers):
        name = f"l{layer}"
        nodes += [
            node("MatMul", [f"h{layer}", "w"], [f"{name}v"]),
            node("Reshape", [f"{name}v", "parts"], [f"{name}p"]),
            node("Transpose", [f"{name}p"], [f"{name}q"], perm=[0, 2, 1, 3]),
            node("Transpose", [f"{name}p"], [f"{name}k"], perm=[0, 2, 3, 1]),
            node("MatMul", [f"{name}q", f"{name}k"], [f"{name}s"]),
            node("Where", ["kept", f"{name}s", "low"], [f"{name}m"]),
            node("Softmax", [f"{name}m"], [f"{name}a"], axis=-1),
            node("MatMul", [f"{name}a", f"{name}q"], [f"{name}c"]),
            node("Transpose", [f"{name}c"], [f"{name}t"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"{name}t", "joined"], [f"{name}j"]),
            node("Add", [f"{name}j", f"h{layer}"], [f"h{layer + 1}"]),
        ]
    nodes.append(node("Relu", [f"h{layers}"], ["y"]))
    numbers = {"none": 0, "scalar": 1, "zero": [0], "one": [1], "minus": [-1], "heads": [2]}
    numbers |= {"behind": [1, 2, 3], "before": [0, 1, 2], "positions": [list(range(32))]}
    stored = {name: np.array(number, np.int64) for name, number in numbers.items()}
    stored |= {"table": floats(32, 8), "w": floats(8, 8), "low": np.array(-1e9, np.float32)}
    inputs = [value(name, ["N", "S"], TensorProto.INT64) for name in ("ids", "mask")]
    return make(nodes, inputs, [value("y", None)], stored, opset=17)


def requests_of(lengths: Sequence[int]) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    made = []
    for rows in lengths:
        ids = rng.integers(0, 32, (rows, 6))
        mask = np.ones((rows, 6), np.int64)
        mask[0, 3 + rows % 3 :] = 0
        made.append({"ids": ids, "mask": mask})
    return made


@pytest.mark.parametrize("stages", [2, 4])
def test_a_transformer_s_shapes_do_not_cross_its_cuts_and_its_requests_share_runs(
    stages: int,
) -> None:
    model = exported_transformer(4)
    result = split(model.SerializeToString(), name="m", stages=stages, profile=False)
    assert result.manifest.batching == Batching("auto", "structure", "")
    for shard in result.manifest.shards:
        assert all(spec.batch for spec in (*shard.receives, *shard.sends))
        assert not any(spec.name in ("parts", "joined", "n", "s") for spec in shard.receives)
    tensors = requests_of([1, 3, 2])
    for shard in result.manifest.shards:
        stage = load_stage(result.manifest, shard.stage, result.files.__getitem__)
        alone = [stage.run(each) for each in tensors]
        for one, many in zip(alone, stage.run_batch(tensors), strict=True):
            assert max(deviation(one[name], many[name]) for name in one) < 1e-5
        tensors = alone


def with_any_batch(model: ModelProto) -> ModelProto:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return model


@pytest.mark.parametrize(
    "model",
    [
        digits_model(),
        mobilenet(32, 0.25),
        resnet50(32, 0.125),
        transformer_encoder(layers=2, d_model=16, heads=2, seq=8, vocabulary=50),
        with_any_batch(yolo_like()).SerializeToString(),
        mlp().SerializeToString(),
    ],
    ids=["digits", "mobilenet", "resnet", "transformer", "yolo", "mlp"],
)
def test_the_networks_of_the_zoo_are_batched(model: bytes) -> None:
    made = split(model, name="m", stages=2, profile=False).manifest
    assert made.batching == Batching("auto", "structure", "")


# --- the switch -----------------------------------------------------------------------------


def test_the_owner_switches_sharing_off() -> None:
    batching = judged(mlp(), batch="off")
    assert (batching.asked, batching.by) == ("off", "")
    assert "switched" in batching.why


def test_the_owner_s_word_stands_for_a_structure_that_nobody_knows() -> None:
    unknown = model_of(chain(("Det",)), [3, 3])
    assert "Det" in judged(unknown).why
    assert "nothing is known here about this operator" in judged(unknown).why
    assert judged(unknown, batch="on") == Batching("on", "owner", "")


@pytest.mark.parametrize("model", [bounded(), branching(), mlp(batch=1)])
def test_the_owner_s_word_is_refused_where_runs_refute_it(model: ModelProto) -> None:
    with pytest.raises(ModelError, match="batch 'on'"):
        judged(model, batch="on")


def test_another_word_is_refused() -> None:
    with pytest.raises(ModelError, match="auto, on, off"):
        judged(mlp(), batch="maybe")


# --- the manifest ---------------------------------------------------------------------------

SPLIT = split(mlp().SerializeToString(), name="m", stages=1, profile=False)


def changed(result: SplitResult, **fields: Any) -> bytes:
    raw = json.loads(result.manifest.to_json()) | fields
    return json.dumps({name: each for name, each in raw.items() if each is not None}).encode()


def test_a_manifest_from_before_structures_were_followed_is_not_believed() -> None:
    assert SPLIT.manifest.batchable
    old = Manifest.from_json(changed(SPLIT, batching=None, batchable=True))
    assert not old.batchable
    assert "split it again" in old.batching.why
    assert not load_stage(old, 1, SPLIT.files.__getitem__).batchable


@pytest.mark.parametrize(
    "fields",
    [
        {"batchable": False},
        {"batching": {"asked": "auto", "by": "hope", "why": ""}},
        {"batching": {"asked": "never", "by": "structure", "why": ""}},
        {"batching": []},
        {"batching": {"asked": "auto", "by": 1, "why": ""}},
    ],
)
def test_a_manifest_that_contradicts_itself_about_batches_is_refused(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(ManifestError, match=r"batch|'by'"):
        Manifest.from_json(changed(SPLIT, **fields))


def test_inspect_says_whether_requests_share_runs_and_why_not(tmp_path: Path) -> None:
    for name, model, text in (
        ("yes", mlp(), "requests share runs"),
        ("no", bounded(), "ReduceMax 'largest_of_all': it reduces axis 0"),
    ):
        made = split(model.SerializeToString(), name=name, stages=1, profile=False)
        write_dir(tmp_path / name, made.manifest, made.files)
        assert text in said("model", "inspect", str(tmp_path / name)).stdout
        document = json.loads(said("model", "inspect", str(tmp_path / name), "--json").stdout)
        assert document["batchable"] == (name == "yes")
        assert document["batching"]["by"] == ("structure" if name == "yes" else "")
