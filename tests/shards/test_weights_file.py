"""An ONNX file is read, and written anew, without the package `onnx`, which is the judge here."""

from __future__ import annotations

import hashlib
from itertools import accumulate

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from shard_graphs import F32, floats, make, mlp, node, value
from zoo.builders import mobilenet, transformer_encoder

from shards.errors import ModelError
from shards.runtimes.ort import make_session
from shards.split.split import split
from shards.weights.chunks import LARGEST, piece_lengths
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_model

MODELS = {
    "digits": digits_model(),
    "mobilenet": mobilenet(32, 0.25),
    "transformer": transformer_encoder(),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_of_a_file_are_those_that_onnx_reads(name: str) -> None:
    files = split(MODELS[name], name="model", stages=2, profile=False).files
    for data in files.values():
        file = OnnxFile(data)
        expected = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in onnx.load_from_string(data).graph.initializer
            if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
        }
        assert list(file.specs) == list(expected)
        for weight, array in expected.items():
            assert file.specs[weight].shape == array.shape
            assert np.array_equal(file.weight(weight), array)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("raw", [True, False])
def test_weights_are_read_in_every_form_that_a_file_may_have(kind: int, raw: bool) -> None:
    array = floats(3, 2).astype(helper.tensor_dtype_to_np_dtype(kind))
    tensor = numpy_helper.from_array(array, "w")
    if not raw:
        tensor = helper.make_tensor("w", kind, [3, 2], array.reshape(-1))
    model = make([node("Identity", ["w"], ["y"])], [], [value("y", [3, 2], kind)])
    model.graph.initializer.append(tensor)
    file = OnnxFile(model.SerializeToString())
    assert np.array_equal(file.weight("w"), array)
    assert file.weight("w").dtype == array.dtype


@given(
    names=st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=5, unique=True),
    number=st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False)),
)
@settings(max_examples=60, deadline=None)
def test_layers_are_read_as_onnx_wrote_them(names: list[str], number: float) -> None:
    layer = node("Some", names, ["y"], one=number, many=[1, 2], text="x")
    read = OnnxFile(make([layer], [value("x", [1])], [value("y", [1])]).SerializeToString())
    assert read.layers[0].operator == "Some"
    assert read.layers[0].inputs == tuple(names)
    assert read.layers[0].numbers == {"one": number}
    assert (read.inputs, read.outputs) == (("x",), ("y",))


def test_a_layer_with_a_graph_of_its_own_says_so() -> None:
    branch = helper.make_graph([node("Identity", ["w"], ["b"])], "branch", [], [value("b", [2])])
    chosen = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = make([chosen], [value("c", [], TensorProto.BOOL)], [value("y", [2])], {"w": floats(2)})
    assert not OnnxFile(model.SerializeToString()).layers[0].is_plain
    assert OnnxFile(mlp().SerializeToString()).layers[0].is_plain


def test_a_file_written_anew_holds_the_new_values_and_computes_with_them() -> None:
    data = mlp().SerializeToString()
    file = OnnxFile(data)
    changed = {name: file.weight(name) * np.float32(2) for name in file.specs}
    written = onnx.load_from_string(file.rewritten(values=changed))
    onnx.checker.check_model(written, full_check=True)
    for tensor in written.graph.initializer:
        assert np.array_equal(numpy_helper.to_array(tensor), changed[tensor.name])
    assert file.rewritten() == data


def test_a_weight_that_became_an_input_is_asked_for_in_each_run() -> None:
    data = mlp().SerializeToString()
    file = OnnxFile(data)
    name = next(iter(file.specs))
    session = make_session(file.rewritten(as_inputs=[name]), level="basic")
    assert name in {arg.name for arg in session.get_inputs()}
    whole = make_session(data, level="basic")
    feeds = {arg.name: floats(1, arg.shape[-1]) for arg in whole.get_inputs()}
    held = {name: file.weight(name)}
    # The runtime packs weights that it knows, and adds in another order where it does not.
    for one, other in zip(whole.run(None, feeds), session.run(None, feeds | held), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    held[name] = held[name] * np.float32(0)
    assert not np.allclose(session.run(None, feeds | held)[0], other)


def test_a_file_with_all_weights_outside_is_small() -> None:
    data = digits_model()
    file = OnnxFile(data)
    outside = onnx.load_from_string(file.rewritten(outside=file.specs))
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in outside.graph.initializer)
    assert len(outside.SerializeToString()) < len(data) / 10


def test_a_weight_that_its_file_does_not_hold_is_an_error() -> None:
    with pytest.raises(ModelError, match="no weight"):
        OnnxFile(mlp().SerializeToString()).weight("other")


def test_a_weight_whose_bytes_are_short_is_an_error() -> None:
    model = make([node("Identity", ["w"], ["y"])], [], [value("y", [2])])
    model.graph.initializer.append(TensorProto(name="w", data_type=F32, dims=[2], raw_data=b"1234"))
    with pytest.raises(ModelError, match="do not make"):
        OnnxFile(model.SerializeToString()).weight("w")


def layers(*names: str, seed: int = 3) -> bytes:
    """A chain of products with 64 KB of weights each, of which the last one has this seed."""
    steps = [
        node("MatMul", ["x" if not i else f"t{i}", n], [f"t{i + 1}"], name=f"m{n}")
        for i, n in enumerate(names)
    ]
    weights = {n: floats(128, 128, seed=ord(n[0])) for n in names}
    weights[names[-1]] = floats(128, 128, seed=seed)
    graph = make(steps, [value("x", [1, 128])], [value(f"t{len(names)}", [1, 128])], weights)
    return graph.SerializeToString()


def pieces(data: bytes) -> dict[str, int]:
    """The length of each piece, by its SHA-256."""
    ends = list(accumulate(piece_lengths(memoryview(data))))
    begins = [0, *ends[:-1]]
    cut = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert b"".join(cut) == data
    return {hashlib.sha256(piece).hexdigest(): len(piece) for piece in cut}


def test_weights_that_moved_to_another_file_are_the_same_pieces() -> None:
    whole, moved = pieces(layers("a", "b", "c")), pieces(layers("b", "c"))
    shared = sum(length for digest, length in moved.items() if digest in whole)
    assert shared >= 128 * 128 * 4, "the weights of b, which stand elsewhere in this file"
    fresh = sum(length for digest, length in moved.items() if digest not in whole)
    assert fresh < 2048, "the rest of the file: layers and names"


def test_a_new_head_is_the_only_new_large_piece() -> None:
    before, after = pieces(layers("a", "b", "c")), pieces(layers("a", "b", "c", seed=9))
    fresh = [length for digest, length in after.items() if digest not in before]
    assert sorted(fresh) == [128 * 128 * 4]


@pytest.mark.parametrize("cut_at", [1, 100, 5000, -1])
def test_a_model_that_is_cut_short_is_cut_evenly_as_any_bytes(cut_at: int) -> None:
    data = layers("a")[:cut_at]
    assert sum(piece_lengths(memoryview(data))) == len(data)


@settings(deadline=None, max_examples=10)
@given(st.binary(max_size=2000), st.integers(0, 2))
def test_the_pieces_of_any_bytes_are_the_bytes(data: bytes, times: int) -> None:
    data = data + bytes(times * LARGEST)
    lengths = piece_lengths(memoryview(data))
    assert sum(lengths) == len(data)
    assert all(0 < length <= LARGEST for length in lengths)
