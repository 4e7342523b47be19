"""Splitting changes nothing: every kind of graph, whole against shard by shard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
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
    with_random_weights,
    yolo_like,
)

from shards.split.split import split

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
# VGG-19 and ZFNet are chains as AlexNet is, and Inception 1 has no branch that Inception 2 lacks.
NAMES = sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx"))
for name in ("vgg19", "zfnet512", "inception_v1"):
    NAMES.remove(name)


def test_the_real_graphs_are_all_here() -> None:
    assert len(NAMES) == 6


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "resnet50" else n for n in NAMES],
)
def test_real_graphs_compute_the_same_in_two_and_five_stages(name: str) -> None:
    model = with_random_weights(onnx.load(str(LIGHT / f"light_{name}.onnx")))
    data = model.SerializeToString()
    key = next(i.name for i in model.graph.input if len(i.type.tensor_type.shape.dim) == 4)
    feeds = {i.name: floats(*_dims(i)) for i in model.graph.input}
    feeds[key] = patches(7)
    expected, at_best = whole(data, feeds), whole(data, feeds, "all")
    (logits,) = expected.values()
    assert np.isfinite(logits).all()
    assert logits.std() > 1e-2 * np.abs(logits).max() > 0, (
        "constant logits would hide a wrong split"
    )
    other = whole(data, {**feeds, key: patches(8)})
    assert np.abs(next(iter(other.values())) - logits).max() > 3e-3 * np.abs(logits).max()
    for stages in (5,) if name == "resnet50" else (2, 5):  # 177 layers take seconds to cut
        result = split(data, name=name, stages=stages, profile=False)
        assert result.manifest.stages == stages
        same(expected, chained(result, feeds, bare=True))
        if stages == 2:
            continue
        for key_, array in chained(result, feeds, "all").items():
            apart = np.abs(array - at_best[key_]).max()
            assert apart <= 1e-5 * np.abs(at_best[key_]).max()


def patches(seed: int) -> np.ndarray:
    """A picture of 7 x 7 even patches: unlike white noise, pooling does not average it away."""
    return np.kron(floats(1, 3, 7, 7, seed=seed), np.ones((1, 1, 32, 32), np.float32))


def _dims(info: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in info.type.tensor_type.shape.dim]


@pytest.mark.parametrize("cuts", [["a1"], ["a2"], ["a1", "neck1"], ["a0", "a1", "a2", "cat1"]])
def test_a_cut_of_several_tensors_carries_all_of_them(cuts: list[str]) -> None:
    model = yolo_like()
    result = split(model.SerializeToString(), name="yolo", cuts=cuts)
    assert max(len(shard.sends) for shard in result.manifest.shards[:-1]) > 1
    proves_exact(model, result, {"image": floats(1, 3, 32, 32)})


def test_the_multiplication_of_a_swish_stays_with_its_sigmoid() -> None:
    result = split(yolo_like().SerializeToString(), name="yolo", stages=5)
    for shard in result.manifest.shards:
        assert not {spec.name for spec in shard.sends} & {"s0", "s1", "s2", "f0", "f1", "f2"}


@pytest.mark.parametrize("cuts", [["a1"], ["a1", "a2"], ["a0", "a1", "a3"]])
def test_outputs_that_are_ready_early_are_carried_to_the_end(cuts: list[str]) -> None:
    model = ssd_like()
    result = split(model.SerializeToString(), name="ssd", cuts=cuts)
    last = result.manifest.shards[-1]
    assert "head0" in last.carries
    assert [spec.name for spec in last.sends] == ["pooled", "head2", "head0", "head1"]
    proves_exact(model, result, {"image": floats(2, 3, 32, 32)})


def test_weights_that_two_shards_use_are_in_both() -> None:
    model = mlp()
    result = split(model.SerializeToString(), name="tied", cuts=["r2"])
    for data in result.files.values():
        assert "w0" in {tensor.name for tensor in onnx.load_from_string(data).graph.initializer}
    proves_exact(model, result, {"x": floats(3, 16)})


def test_a_branch_may_capture_tensors_and_weights_from_outside() -> None:
    then = helper.make_graph(
        [node("Gemm", ["early", "w1"], ["t0"]), node("Add", ["t0", "late"], ["t"])],
        "then", [], [value("t", None)],
    )  # fmt: skip
    other = helper.make_graph([node("Mul", ["early", "x"], ["e"])], "else", [], [value("e", None)])
    nodes = [
        node("Gemm", ["x", "w0"], ["g0"]),
        node("Relu", ["g0"], ["early"]),
        node("Gemm", ["early", "w1"], ["g1"]),
        node("Tanh", ["g1"], ["late"]),
        node("If", ["flag"], ["chosen"], then_branch=then, else_branch=other),
        node("Gemm", ["chosen", "w0"], ["y"]),
    ]
    inputs = [value("x", ["N", 8]), value("flag", [], TensorProto.BOOL)]
    model = make(nodes, inputs, [value("y", ["N", 8])], weights(3, w0=(8, 8), w1=(8, 8)))
    result = split(model.SerializeToString(), name="branch", cuts=["early", "late", "chosen"])
    assert {"early", "late", "x", "flag"} == {s.name for s in result.manifest.shard(3).receives}
    for flag in (True, False):
        proves_exact(model, result, {"x": floats(2, 8), "flag": np.array(flag)})


def test_a_loop_may_capture_tensors_from_outside() -> None:
    body = helper.make_graph(
        [
            node("Gemm", ["state", "w1"], ["s0"]),
            node("Add", ["s0", "outer"], ["s1"]),
            node("Tanh", ["s1"], ["next"]),
            node("Identity", ["going"], ["on"]),
        ],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("going", [], TensorProto.BOOL),
            value("state", ["N", 8]),
        ],
        [value("on", [], TensorProto.BOOL), value("next", ["N", 8])],
    )
    nodes = [
        node("Gemm", ["x", "w0"], ["outer"]),
        node("Relu", ["x"], ["start"]),
        node("Loop", ["count", "", "start"], ["looped"], body=body),
        node("Gemm", ["looped", "w0"], ["y"]),
    ]
    inputs = [value("x", ["N", 8]), value("count", [], TensorProto.INT64)]
    model = make(nodes, inputs, [value("y", ["N", 8])], weights(4, w0=(8, 8), w1=(8, 8)))
    result = split(model.SerializeToString(), name="loop", cuts=["start", "looped"])
    for count in (0, 3):
        proves_exact(model, result, {"x": floats(2, 8), "count": np.array(count)})


def test_chains_of_constants_are_copied_and_never_sent() -> None:
    params = weights(5, w0=(8, 8))
    params["packed"] = np.random.default_rng(5).integers(-9, 9, (8, 8), dtype=np.int8)
    params |= {"scale": np.float32(0.1), "zero": np.int8(0), "dims": np.array([8, 8])}
    nodes = [
        node("DequantizeLinear", ["packed", "scale", "zero"], ["unpacked"]),
        node("Shape", ["unpacked"], ["shape"]),
        node("ConstantOfShape", ["dims"], ["ones"], value=numpy_helper.from_array(np.ones(1, "f"))),
        node("Add", ["unpacked", "ones"], ["weight"]),
        node("Gemm", ["x", "weight"], ["g0"]),
        node("Relu", ["g0"], ["a0"]),
        node("Gemm", ["a0", "weight"], ["g1"]),
        node("Relu", ["g1"], ["a1"]),
        node("Gemm", ["a1", "weight"], ["y"]),
    ]
    model = make(nodes, [value("x", ["N", 8])], [value("y", ["N", 8])], params)
    result = split(model.SerializeToString(), name="constants", stages=3)
    sent = [[spec.name for spec in shard.sends] for shard in result.manifest.shards]
    assert sent == [["a0"], ["a1"], ["y"]]
    proves_exact(model, result, {"x": floats(2, 8)})


def test_integers_booleans_and_half_precision_cross_a_cut() -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("Cast", ["rows"], ["half"], to=TensorProto.FLOAT16),
        node("Greater", ["rows", "zero"], ["mask"]),
        node("Add", ["ids", "one"], ["next"]),
        node("Gather", ["table", "next"], ["more"]),
        node("Cast", ["half"], ["full"], to=TensorProto.FLOAT),
        node("Where", ["mask", "full", "more"], ["y"]),
    ]
    params = {"table": floats(9, 8), "zero": np.float32(0), "one": np.array(1)}
    ids = value("ids", ["N", "T"], TensorProto.INT64)
    model = make(nodes, [ids], [value("y", None)], params)
    result = split(model.SerializeToString(), name="types", cuts=["next"])
    kinds = {spec.name: spec.datatype for spec in result.manifest.shard(1).sends}
    assert kinds == {"half": "FP16", "mask": "BOOL", "next": "INT64"}
    proves_exact(model, result, {"ids": np.arange(8).reshape(2, 4)})


@pytest.mark.parametrize("opset", [9, 13, 21, 26])
def test_old_and_new_operator_sets_are_split(opset: int) -> None:
    model = mlp(opset=opset)
    result = split(model.SerializeToString(), name="opset", stages=3)
    assert result.manifest.opset == opset
    proves_exact(model, result, {"x": floats(2, 16)})


def test_weights_in_files_of_their_own_are_read_in(tmp_path: Path) -> None:
    model = mlp(width=64)
    data = model.SerializeToString()
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=True, size_threshold=0, location="w.bin")
    assert path.stat().st_size < 5000
    result = split(path, name="external", stages=2)
    proves_exact(data, result, {"x": floats(2, 64)})


def test_the_same_weights_file_with_other_bytes_is_another_source(tmp_path: Path) -> None:
    digests = set()
    for seed in (0, 1):
        model = mlp(width=64)
        model.graph.initializer[0].CopyFrom(
            numpy_helper.from_array(floats(64, 64, seed=seed), model.graph.initializer[0].name)
        )
        onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin")
        digests.add(split(tmp_path / "m.onnx", name="m", stages=2).manifest.source_sha256)
        (tmp_path / "w.bin").unlink()
    assert len(digests) == 2


def test_an_input_used_late_is_carried_past_the_first_stage() -> None:
    nodes = [
        node("Gemm", ["x", "w0"], ["g0"]),
        node("Relu", ["g0"], ["a0"]),
        node("Gemm", ["a0", "w1"], ["g1"]),
        node("Add", ["g1", "skip"], ["y"]),
    ]
    inputs = [value("x", ["N", 8]), value("skip", ["N", 8])]
    model = make(nodes, inputs, [value("y", ["N", 8])], weights(6, w0=(8, 8), w1=(8, 8)))
    result = split(model.SerializeToString(), name="late", cuts=["a0"])
    assert result.manifest.shard(1).carries == ("skip",)
    proves_exact(model, result, {"x": floats(2, 8), "skip": floats(2, 8, seed=9)})


def test_an_input_that_is_also_an_output_passes_through() -> None:
    model = mlp()
    model.graph.output.append(value("x", ["N", 16]))
    result = split(model.SerializeToString(), name="echo", stages=3)
    assert all("x" in shard.carries for shard in result.manifest.shards)
    proves_exact(model, result, {"x": floats(2, 16)})


def test_an_output_that_is_a_constant_comes_from_the_last_stage() -> None:
    model = mlp()
    model.graph.output.append(value("w3", [16, 16]))
    result = split(model.SerializeToString(), name="constant", stages=2)
    assert "w3" not in {spec.name for spec in result.manifest.shard(1).sends}
    proves_exact(model, result, {"x": floats(2, 16)})


def test_an_input_that_nothing_reads_is_accepted_and_dropped() -> None:
    model = mlp()
    model.graph.input.append(value("unused", ["N", 3]))
    result = split(model.SerializeToString(), name="unused", stages=2)
    assert {s.name for s in result.manifest.shard(1).receives} == {"x", "unused"}
    proves_exact(model, result, {"x": floats(2, 16), "unused": floats(2, 3)})


def test_initializers_listed_as_inputs_become_constants() -> None:
    model = mlp()
    model.graph.input.extend(value(t.name, list(t.dims)) for t in model.graph.initializer)
    result = split(model.SerializeToString(), name="listed", stages=2)
    assert [spec.name for spec in result.manifest.inputs] == ["x"]
    proves_exact(mlp(), result, {"x": floats(2, 16)})


def test_sparse_weights_are_split() -> None:
    dense = np.zeros((8, 8), np.float32)
    dense[[0, 3, 5], [1, 2, 7]] = [1.5, -2.0, 3.0]
    where = np.flatnonzero(dense)
    model = make(
        [
            node("MatMul", ["x", "s"], ["m"]),
            node("Relu", ["m"], ["a"]),
            node("MatMul", ["a", "s"], ["y"]),
        ],
        [value("x", ["N", 8])],
        [value("y", ["N", 8])],
    )
    values = numpy_helper.from_array(dense.ravel()[where], "s")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(where, "s_at"), [8, 8])
    )
    result = split(model.SerializeToString(), name="sparse", cuts=["a"])
    proves_exact(model, result, {"x": floats(2, 8)})


def test_local_functions_are_inlined() -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"],
        [node("Relu", ["a"], ["c"]), node("Add", ["c", "c"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        node("Gemm", ["x", "w0"], ["g"]),
        node("Twice", ["g"], ["t"], domain="local"),
        node("Gemm", ["t", "w0"], ["y"]),
    ]
    model = make(nodes, [value("x", ["N", 8])], [value("y", ["N", 8])], weights(7, w0=(8, 8)))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    result = split(model.SerializeToString(), name="function", stages=2)
    proves_exact(model, result, {"x": floats(2, 8)})


def test_equal_models_give_equal_shards() -> None:
    data = mlp().SerializeToString()
    first, second = (split(data, name="m", cuts=["r1", "r3"]) for _ in range(2))
    assert first.files == second.files
