"""Where a model is cut, what is refused, and what the caller is told."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from shard_graphs import (
    chained,
    floats,
    make,
    mlp,
    node,
    proves_exact,
    same,
    ssd_like,
    value,
    weights,
    whole,
    yolo_like,
)

from shards.errors import ManifestError, ModelError, SplitError
from shards.graph.cuts import nearest_position, sensible_cuts, thin_out
from shards.graph.fuse import fuse
from shards.graph.graph import Graph
from shards.graph.layer_range import extract, layer_range
from shards.graph.source import read_model, weight_bytes
from shards.graph.tensor_types import infer_types
from shards.split.check import check_split
from shards.split.split import SplitResult, split


def sent(result: SplitResult) -> list[set[str]]:
    return [{spec.name for spec in shard.sends} for shard in result.manifest.shards[:-1]]


def test_an_operator_and_its_activation_are_never_parted() -> None:
    result = split(mlp(layers=6).SerializeToString(), name="m", stages=7)
    assert sent(result) == [{f"r{index}"} for index in range(6)]


def test_more_stages_than_possible_are_refused_with_the_maximum() -> None:
    with pytest.raises(SplitError, match="7 stages are possible") as caught:
        split(mlp(layers=6).SerializeToString(), name="m", stages=8)
    assert caught.value.possible == 7


def test_a_graph_of_one_layer_proposes_one_stage() -> None:
    model = make([node("Relu", ["x"], ["y"])], [value("x", ["N", 8])], [value("y", ["N", 8])])
    with pytest.raises(SplitError, match=r"1 stage is possible \(it has one layer\)") as caught:
        split(model.SerializeToString(), name="m", stages=2)
    assert str(caught.value).endswith("Ask for --stages 1")
    assert caught.value.possible == 1
    assert split(model.SerializeToString(), name="m", stages=1).manifest.stages == 1


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.INT8])
def test_a_quantized_graph_without_sensible_cuts_says_why_and_how_it_is_cut(kind: int) -> None:
    """Each tensor is quantized and dequantized again, so a cut sends 8 bits, or parts the two."""
    zero = helper.make_tensor("zero", kind, [], b"\0", raw=True)
    nodes: list[onnx.NodeProto] = []
    last = "x"
    for index in range(2):
        nodes += [
            node("QuantizeLinear", [last, "scale", "zero"], [f"q{index}"]),
            node("DequantizeLinear", [f"q{index}", "scale", "zero"], [f"d{index}"]),
            node("Exp", [f"d{index}"], [f"a{index}"]),
        ]
        last = f"a{index}"
    params = {"scale": np.float32(0.05)}
    model = make(nodes, [value("x", [1, 8])], [value(last, [1, 8])], params, opset=19)
    model.ir_version = 9
    model.graph.initializer.append(zero)
    with pytest.raises(SplitError) as caught:
        split(model.SerializeToString(), name="m", stages=6, profile=False)
    said = str(caught.value)
    assert "at 3 of 5 places the cut would part operators that run as one" in said
    is_fp8 = kind == TensorProto.FLOAT8E4M3FN
    assert ("at 2 of 5 places a tensor(float8e4m3fn) would be sent" in said) == is_fp8
    possible = 1 if is_fp8 else 3
    assert said.endswith(f"Ask for --stages {possible}, or name tensors to cut after with --cuts")
    cut = split(model.SerializeToString(), name="m", cuts=["a0"], profile=False)
    proves_exact(model, cut, {"x": floats(1, 8)})


def test_the_stages_possible_behind_an_edge_are_counted_apart() -> None:
    with pytest.raises(SplitError, match="after the edge's layers: 3 stages are possible"):
        split(mlp(layers=6).SerializeToString(), name="m", stages=4, edge_cut="r3")
    with pytest.raises(SplitError, match="6 stages are possible behind an edge") as caught:
        split(mlp(layers=6).SerializeToString(), name="m", stages=7, edge_layers=2)
    assert caught.value.possible == 6


def test_edge_layers_move_to_the_nearest_good_cut_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        result = split(mlp().SerializeToString(), name="m", stages=2, edge_layers=3, profile=False)
    assert result.manifest.shard(0).end == 2
    assert result.notes == ("edge_layers 3 moved to 2, the nearest place to cut well",)
    assert result.notes[0] in caplog.text
    assert result.manifest.extra["notes"] == list(result.notes)


def test_an_edge_leaves_room_for_the_stages_behind_it() -> None:
    result = split(mlp().SerializeToString(), name="m", stages=4, edge_layers=99, profile=False)
    assert [shard.end for shard in result.manifest.shards] == [6, 8, 10, 12, 13]


def test_a_cut_named_by_a_tensor_lies_right_after_it() -> None:
    result = split(yolo_like().SerializeToString(), name="y", cuts=[["a1", "a0"]], edge_cut="a0")
    assert sent(result) == [{"a0"}, {"a0", "a1"}]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cuts": ["r22"]}, "no tensor 'r22' in the fused graph"),
        ({"cuts": ["r2", "r2"]}, "same place"),
        ({"cuts": ["w1"]}, "is a constant"),
        ({"cuts": [[]]}, "names at least one tensor"),
        ({"cuts": ["r1"], "stages": 3}, "1 cuts make 2 stages, not 3"),
        ({"cuts": ["r1"], "edge_cut": "r1"}, "must end before the first cut"),
        ({"edge_cut": "r1", "edge_layers": 2}, "not both"),
        ({"stages": 0}, "at least one stage"),
        ({"edge_layers": -1}, "cannot be -1"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(SplitError, match=reason):
        split(mlp().SerializeToString(), name="m", profile=False, **options)  # type: ignore[arg-type]


def test_a_misspelt_tensor_gets_close_names() -> None:
    with pytest.raises(SplitError, match=r"close names: .*r2"):
        split(mlp().SerializeToString(), name="m", cuts=["rr2"])


def test_a_cut_that_tears_operators_apart_is_made_but_mentioned() -> None:
    result = split(yolo_like().SerializeToString(), name="m", cuts=["f1"], profile=False)
    assert "tears operators apart" in result.notes[0]
    proves_exact(yolo_like(), result, {"image": floats(1, 3, 32, 32)})


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*"])
def test_a_name_that_is_no_token_is_refused(name: str) -> None:
    with pytest.raises(ManifestError):
        split(mlp().SerializeToString(), name=name, stages=2)
    with pytest.raises(ManifestError):
        split(mlp().SerializeToString(), name="m", version=name, stages=2)


def test_a_quantized_model_is_cut_at_its_eight_bit_tensors() -> None:
    nodes, last, params = [], "x", weights(1, **{f"w{i}": (8, 8) for i in range(3)})
    params |= {"scale": np.float32(0.05), "zero": np.uint8(128)}
    for index in range(3):
        nodes += [
            node("QuantizeLinear", [last, "scale", "zero"], [f"q{index}"]),
            node("DequantizeLinear", [f"q{index}", "scale", "zero"], [f"d{index}"]),
            node("MatMul", [f"d{index}", f"w{index}"], [f"m{index}"]),
            node("Relu", [f"m{index}"], [f"a{index}"]),
        ]
        last = f"a{index}"
    model = make(nodes, [value("x", ["N", 8])], [value(last, ["N", 8])], params)
    result = split(model.SerializeToString(), name="q", stages=3)
    assert [shard.sends[0].datatype for shard in result.manifest.shards[:-1]] == ["UINT8"] * 2
    feeds = {"x": floats(2, 8)}
    expected = whole(model.SerializeToString(), feeds)
    same(expected, chained(result, feeds))


def test_random_numbers_are_drawn_once_and_not_compared() -> None:
    nodes = [
        node("RandomNormal", [], ["noise"], shape=[1, 8]),
        node("Add", ["x", "noise"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Sub", ["r", "noise"], ["y"]),
    ]
    model = make(nodes, [value("x", [1, 8])], [value("y", [1, 8])])
    result = split(model.SerializeToString(), name="noise", cuts=["r"])
    assert sent(result) == [{"noise", "r"}]
    assert any("random numbers" in note for note in result.notes)


def test_every_size_of_a_dynamic_picture_is_accepted_by_every_stage() -> None:
    params = weights(1, c=(4, 3, 3, 3), d=(4, 4, 3, 3))
    nodes = [
        node("Conv", ["image", "c"], ["f"]),
        node("Relu", ["f"], ["a"]),
        node("Conv", ["a", "d"], ["y"]),
    ]
    model = make(nodes, [value("image", ["N", 3, "H", "W"])], [value("y", None)], params)
    result = split(model.SerializeToString(), name="m", stages=2)
    for size in (8, 20):
        proves_exact(model, result, {"image": floats(2, 3, size, size + 1)})


def test_a_tensor_of_unknown_rank_crosses_at_each_rank() -> None:
    nodes = [
        node("Reshape", ["x", "shape"], ["z"]),
        node("Relu", ["z"], ["r"]),
        node("ReduceSum", ["r"], ["y"]),
    ]
    shape = value("shape", ["rank"], TensorProto.INT64)
    model = make(nodes, [value("x", [4, 6]), shape], [value("y", None)])
    feeds = {"x": floats(4, 6), "shape": np.array([2, 3, 4])}
    result = split(model.SerializeToString(), name="m", cuts=["r"], example=feeds)
    assert str(result.manifest.shard(2).receives[0]) == "FP32 of any shape"
    proves_exact(model, result, feeds)
    proves_exact(model, result, feeds | {"shape": np.array([12, 2])})


def test_an_example_without_rows_is_refused_because_it_proves_nothing() -> None:
    with pytest.raises(ModelError, match="the example is empty, and proves nothing"):
        split(mlp().SerializeToString(), name="m", stages=2, example={"x": floats(0, 16)})


def test_an_example_that_does_not_run_is_refused() -> None:
    with pytest.raises(ModelError, match="does not run on the example"):
        split(mlp().SerializeToString(), name="m", stages=2, example={"x": floats(1, 3)})


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "no graph"), (b"\xff" * 40, "not an ONNX model"), (b"hello world", "not an ONNX model")],
)
def test_bytes_and_text_that_are_no_model_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        split(data, name="m", stages=2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*nowhere.onnx"):
        split(tmp_path / "nowhere.onnx", name="m", stages=2)


def test_weights_outside_the_bytes_ask_for_the_path(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(mlp(width=64), str(path), save_as_external_data=True, size_threshold=0, location="w")
    with pytest.raises(ModelError, match="give the path"):
        split(path.read_bytes(), name="m", stages=2)
    (tmp_path / "w").unlink()
    with pytest.raises(ModelError, match="cannot read the external data"):
        split(path, name="m", stages=2)


def test_an_operator_set_newer_than_the_runtime_is_refused_with_its_reason() -> None:
    with pytest.raises(ModelError, match=r"(?i)opset"):
        split(mlp(opset=99).SerializeToString(), name="m", stages=2)


def test_an_unknown_operator_is_refused_with_its_name() -> None:
    model = make([node("Frobnicate", ["x"], ["y"])], [value("x", ["N", 8])], [value("y", ["N", 8])])
    with pytest.raises(ModelError, match="Frobnicate"):
        split(model.SerializeToString(), name="m", stages=2)


def test_inputs_that_are_no_tensors_are_refused() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    model = make([node("ConcatFromSequence", ["x"], ["y"], axis=0)], [sequence], [value("y", None)])
    with pytest.raises(ModelError, match="only tensors cross the mesh"):
        split(model.SerializeToString(), name="m", stages=1)


TEXT = value("text", ["N"], TensorProto.STRING)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            make(
                [node("Cast", ["text"], ["y"], to=TensorProto.FLOAT)], [TEXT], [value("y", ["N"])]
            ),
            r"input 'text' is a tensor\(string\), BYTES to clients.*FP32",
        ),
        (
            make(
                [node("Cast", ["x"], ["text"], to=TensorProto.STRING)], [value("x", ["N"])], [TEXT]
            ),
            r"output 'text' is a tensor\(string\), BYTES to clients",
        ),
    ],
)
def test_tensors_of_text_are_refused_by_name_and_by_their_datatype(
    model: ModelProto, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        split(model.SerializeToString(), name="m", stages=1)


def test_a_sequence_between_two_layers_is_no_place_to_cut() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("SplitToSequence", ["r"], ["parts"], axis=0),
        node("ConcatFromSequence", ["parts"], ["c"], axis=1),
        node("Tanh", ["c"], ["y"]),
    ]
    model = make(nodes, [value("x", [2, 4])], [value("y", None)])
    result = split(model.SerializeToString(), name="m", stages=3)
    assert sent(result) == [{"r"}, {"c"}]
    with pytest.raises(SplitError, match="would send 'parts'"):
        split(model.SerializeToString(), name="m", cuts=["parts"])


def test_a_lighter_model_with_other_outputs_is_refused() -> None:
    with pytest.raises(ModelError, match="lighter model has the outputs"):
        split(mlp().SerializeToString(), name="m", stages=2, lighter=_renamed().SerializeToString())


def _renamed() -> onnx.ModelProto:
    model = mlp(layers=1)
    model.graph.node[-1].output[0] = model.graph.output[0].name = "z"
    return model


@pytest.mark.parametrize("share", [0.5, 1.5])
def test_a_model_too_large_for_one_message_is_fused_through_files(share: float) -> None:
    """Itself, or what folding makes of it."""
    model, _ = read_model(mlp(width=64).SerializeToString())
    small, large = fuse(model), fuse(model, limit=int(share * weight_bytes(model)))
    feeds = {"x": floats(2, 64)}
    same(whole(small.SerializeToString(), feeds), whole(large.SerializeToString(), feeds))
    again, _ = read_model(mlp(width=64).SerializeToString())
    assert model == again, "fusing must not change the model it is given"


def test_a_shard_too_large_for_one_file_asks_for_more_stages() -> None:
    graph = Graph.of(fuse(read_model(mlp(width=64).SerializeToString())[0]))
    part = layer_range(graph, 0, len(graph), first=True, last=True)
    with pytest.raises(SplitError, match="ask for more stages"):
        extract(graph, part, infer_types(graph), limit=10_000)


def test_shards_that_compute_something_else_than_the_whole_are_refused() -> None:
    graph = Graph.of(fuse(read_model(mlp().SerializeToString())[0]))
    other = Graph.of(fuse(read_model(mlp(layers=7).SerializeToString())[0]))
    types = infer_types(graph)
    first = layer_range(graph, 0, 6, first=True)
    second = layer_range(graph, 6, len(graph), last=True)
    # The right tensors in and out, but one layer more in between.
    wrong = layer_range(other, 6, len(other), last=True)
    parts = [
        (first, extract(graph, first, types)),
        (second, extract(other, wrong, infer_types(other))),
    ]
    feeds = {"x": floats(1, 16)}
    whole_model = mlp().SerializeToString()
    with pytest.raises(ModelError, match=r"off by .* from the whole model"):
        check_split(whole_model, parts, feeds, tolerance=1e-4, budget_s=0)
    parts[1] = (second, extract(graph, second, types))
    assert check_split(whole_model, parts, feeds, tolerance=1e-4, budget_s=0).notes == []


def test_shards_declare_only_the_domains_they_use() -> None:
    result = split(mlp().SerializeToString(), name="m", stages=2, profile=False)
    for data in result.files.values():
        assert [o.domain for o in onnx.load_from_string(data).opset_import] == [""]


def test_stages_are_balanced_by_measured_time() -> None:
    """The first layers are 64 times as wide: an equal count of layers would be far off."""
    nodes, last = [node("MatMul", ["x", "wide"], ["h0"])], "h0"
    for index in range(1, 13):
        wide = index < 4
        nodes.append(node("MatMul", [last, "wide" if wide else "narrow"], [f"m{index}"]))
        nodes.append(node("Tanh", [f"m{index}"], [f"h{index}"]))
        last = f"h{index}"
        if index == 3:
            nodes.append(node("Slice", [last, "zero", "eight", "one"], ["cut"]))
            last = "cut"
    params = weights(1, wide=(1024, 1024), narrow=(8, 8))
    params |= {k: np.array([v]) for k, v in {"zero": 0, "eight": 8, "one": 1}.items()}
    model = make(nodes, [value("x", [64, 1024])], [value(last, None)], params)
    result = split(model.SerializeToString(), name="m", stages=2, bandwidth=1e9)
    assert result.manifest.shard(1).end <= 7 < result.manifest.extra["layers"] // 2
    assert all(shard.compute_ms > 0 for shard in result.manifest.shards)


def test_without_timing_the_work_is_estimated() -> None:
    result = split(ssd_like().SerializeToString(), name="m", stages=2, profile=False)
    assert [shard.compute_ms for shard in result.manifest.shards] == [0.0, 0.0]


def test_thinning_keeps_the_lightest_position_of_each_share() -> None:
    bytes_at = {p: 100 - (p % 10 == 5) * 50 for p in range(1, 100)}
    chosen = thin_out(range(1, 100), bytes_at, [1.0] * 100, 10)
    assert chosen == list(range(5, 100, 10))
    assert thin_out([1, 2, 3], {1: 1, 2: 1, 3: 1}, [1.0] * 4, 10) == [1, 2, 3]


def test_nearest_prefers_the_earlier_position_on_a_tie() -> None:
    assert nearest_position([2, 4, 8], 3) == 2
    assert nearest_position([2, 4, 8], 7) == 8
    assert nearest_position([2, 4, 8], 99) == 8
    assert nearest_position([], 3) is None


def test_the_cut_after_a_matmul_is_after_its_bias() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    params = weights(1, w=(8, 8), b=(8,))
    graph = Graph.of(make(nodes, [value("x", [2, 8])], [value("y", [2, 8])], params))
    assert sensible_cuts(graph, infer_types(graph)) == [2]


def test_the_whole_model_is_timed_beside_its_parts_where_that_is_asked_for() -> None:
    model = mlp(layers=6).SerializeToString()
    assert split(model, name="m", stages=3, time_whole=True).whole_ms > 0
    assert split(model, name="m", stages=3).whole_ms == 0.0
