"""The parts of a manifest that the mesh reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from swarm.errors import InvalidArgument
from swarm.model import ModelInfo, Spec, check_tensors


def tensor(name: str = "x", shape: Any = (1, 8), datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def manifest(**changes: Any) -> dict[str, Any]:
    shards = [
        {"stage": n, "receives": [tensor()], "sends": [tensor("y")], "compute_ms": 1.5}
        for n in (1, 2)
    ]
    return {
        "model": "m",
        "version": "1",
        "inputs": [tensor(shape=(-1, 8))],
        "outputs": [tensor("y")],
        "shards": shards,
    } | changes


def info(**changes: Any) -> ModelInfo:
    return ModelInfo.from_manifest(json.dumps(manifest(**changes)).encode())


def test_a_manifest_gives_the_stages_and_what_they_carry() -> None:
    edge = {"stage": 0, "receives": [tensor()], "sends": [tensor("y", (4, 8))]}
    got = info(shards=[edge, *manifest()["shards"]], batchable=True, batching={"by": "structure"})
    assert (got.model, got.version, got.last, got.batchable) == ("m", "1", 2, True)
    assert got.edge is not None
    assert got.edge.message_bytes == 4 * 8 * 4
    assert [stage.stage for stage in got.stages] == [1, 2]
    assert got.inputs == (Spec("x", "FP32", (-1, 8)),)


@pytest.mark.parametrize(
    ("shape", "more", "nbytes"),
    [
        ((-1, 3, -1, -1), {"example": {"shape": [1, 3, 32, 40]}}, 3 * 32 * 40 * 4),
        ((-1, 3, -1, -1), {"example": {"shape": [64, 3, 32, 40]}, "batch": True}, 3 * 32 * 40 * 4),
        ((-1, 3, -1, -1), {"example": {"shape": [5, 3, 32, 40]}}, 5 * 3 * 32 * 40 * 4),
        ((1, 3, 8, 8), {"example": {"shape": [1, 3, 32, 40]}}, 3 * 8 * 8 * 4),
        ((), {"example": {"shape": [7, 9]}, "any_rank": True}, 7 * 9 * 4),
        ((-1, 3, -1, -1), {}, 3 * 4),
        ((-1, 3), {"example": {"shape": [1, 3, 5]}}, 3 * 4),
    ],
)
def test_a_tensor_of_open_sizes_weighs_as_much_as_where_the_model_was_proved(
    shape: tuple[int, ...], more: dict[str, Any], nbytes: int
) -> None:
    (spec,) = info(inputs=[tensor(shape=shape) | more]).inputs
    assert spec.nbytes == nbytes


@pytest.mark.parametrize("shape", [[-1, 3], ["3", 3], [2.5, 3], "ab", 7, [None, 3]])
def test_an_example_that_is_no_shape_is_no_manifest(shape: Any) -> None:
    with pytest.raises(InvalidArgument):
        info(inputs=[tensor(shape=(-1, 3)) | {"example": {"shape": shape}}])


def test_features_and_results_have_codecs_of_their_own_and_none_are_allowed_by_default() -> None:
    of_before = info(codecs={"i4": {}})
    assert (of_before.codecs, of_before.result_codecs) == ({"i4"}, frozenset())
    got = info(codecs={"i4": {}}, result_codecs={"i8": {}, "i99": {}})
    assert (got.codecs, got.result_codecs) == ({"i4"}, {"i8"})  # of a later version: not used


def test_a_task_is_handed_on_unread() -> None:
    assert info(task={"kind": "juggle"}).task == {"kind": "juggle"}
    assert info().task is None
    assert info(task="juggle").task is None


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "a.b"},
        {"codecs": 7},
        {"result_codecs": 7},
        {"result_codecs": [["i8"]]},
        {"model": None},
        {"version": 1},
        {"inputs": None},
        {"inputs": [7]},
        {"inputs": {"x": 1}},
        {"inputs": [tensor(datatype="FP8")]},
        {"inputs": [tensor(shape="ab")]},
        {"inputs": [tensor(shape=[1.5])]},
        {"inputs": [tensor(shape=[-2])]},
        {"shards": []},
        {"shards": None},
        {"shards": "abc"},
        {"shards": [7]},
        {"shards": manifest()["shards"][1:]},
        {"shards": manifest()["shards"] * 2},
        {"shards": [manifest()["shards"][0] | {"stage": float("inf")}]},
        {"shards": [manifest()["shards"][0] | {"compute_ms": "fast"}]},
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_a_manifest_with_a_fault_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        info(**changes)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b"null", b'"x"', b"\xff", b"[" * 100_000, b"{}", b"\0" * 10],
    ids=lambda data: repr(data[:10]),
)
def test_bytes_that_are_no_manifest_are_an_invalid_argument(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        ModelInfo.from_manifest(data)


F = np.float32


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, r"model 'm' takes 'x', not nothing"),
        ({"y": np.zeros((1, 8), F)}, r"takes 'x', not 'y'"),
        ({"x": np.zeros((1, 8), F), "y": np.zeros(1)}, r"takes 'x', not 'x', 'y'"),
        ({"x": np.zeros((1, 8))}, r"'x' must be FP32 \(float32\), not float64"),
        ({"x": np.zeros(8, F)}, r"must have shape \[any, 8\], not \[8\]"),
        ({"x": np.zeros((1, 9), F)}, r"must have shape \[any, 8\], not \[1, 9\]"),
        ({"x": np.zeros((0, 8), F)}, r"'x' is empty: shape \[0, 8\]"),
    ],
)
def test_wrong_inputs_are_told_what_was_expected_and_what_came(
    tensors: dict[str, np.ndarray], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        info().check(tensors)


def test_right_inputs_pass() -> None:
    for rows in (1, 5):
        info().check({"x": np.zeros((rows, 8), F)})
    check_tensors((), {}, "a stage")


def test_a_tensor_of_any_rank_takes_each_shape_and_is_marked_as_such() -> None:
    free = info(inputs=[tensor(shape=()) | {"any_rank": True}])
    for shape in ((), (4,), (1, 3, 5, 5)):
        free.check({"x": np.zeros(shape, np.float32)})
    with pytest.raises(InvalidArgument, match="must be FP32"):
        free.check({"x": np.zeros(4, np.int64)})
    with pytest.raises(InvalidArgument, match=r"must have shape \[\], not \[4\]"):
        info(inputs=[tensor(shape=())]).check({"x": np.zeros(4, np.float32)})
