"""One request of eight in a batch is bad: it is answered with an error that says so, and the others
get what they get alone. The layers are real ones, by ONNX Runtime."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from stage_bench import Bench, FakeModel

from shards.errors import RunError
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.runtime import CancelToken
from shards.runtimes.stage import StageRuntime
from shards.schema import Shard
from shards.specs import TensorSpec
from swarm.errors import Status

MakeBench = Callable[..., Awaitable[Bench]]
Tensors = dict[str, np.ndarray]
EIGHT = 8
X = TensorSpec("x", "FP32", (-1, 4), True)
AT = TensorSpec("at", "INT64", (-1, 1), True)
KINDS = {"FP32": TensorProto.FLOAT, "INT64": TensorProto.INT64}


def graph(*nodes: Any, inputs: tuple[TensorSpec, ...], **weights: np.ndarray) -> ModelProto:
    """A model that gives y [rows, 4] for its inputs."""
    given = [
        helper.make_tensor_value_info(s.name, KINDS[s.datatype], ("n", s.shape[1])) for s in inputs
    ]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ("m", 4))
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    body = helper.make_graph(list(nodes), "g", given, [made], stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


@cache
def stage(name: str) -> StageRuntime:
    inputs: tuple[TensorSpec, ...] = (X,)
    if name == "an index":  # Gather raises beyond its table
        inputs = (X, AT)
        model = graph(
            node("Gather", "table at", "rows", axis=0),
            node("Squeeze", "rows one", "row"),
            node("Add", "row x", "y"),
            inputs=inputs,
            table=np.arange(40, dtype=np.float32).reshape(10, 4),
            one=np.array([1]),
        )
    elif name == "a shape by data":  # Reshape raises where the numbers do not fit
        inputs = (X, AT)
        model = graph(
            node("ReduceMin", "at", "least", keepdims=0),
            node("Reshape", "least one", "width"),
            node("Concat", "any width", "shape", axis=0),
            node("Reshape", "x shape", "y"),
            inputs=inputs,
            one=np.array([1]),
            any=np.array([-1]),
        )
    elif name == "rows by data":  # how many rows there are depends on what they say
        model = graph(
            node("Gather", "x zero", "first", axis=1),
            node("Greater", "first none", "wanted"),
            node("Compress", "x wanted", "y", axis=0),
            inputs=inputs,
            zero=np.array(0),
            none=np.array(0, np.float32),
        )
    else:
        model = graph(node("Exp", "x", "y"), inputs=inputs)
    runtime = OrtRuntime(model.SerializeToString(), inputs=inputs)
    sends = (TensorSpec("y", "FP32", (-1, 4), True),)
    shard = Shard(2, 0, 1, "f", "", 0, inputs, sends, (), inputs, sends)
    return StageRuntime(shard, runtime, batchable=True)


class Real(FakeModel):
    """A real stage, whose runs wait for the test's word."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.stage = stage(name)
        self.gate = threading.Event()

    def check(self, tensors: Any) -> None:
        self.stage.check(tensors)

    def run(self, tensors: Any, cancel: CancelToken | None = None) -> Tensors:
        return self.stage.run(tensors, cancel)

    def run_batch(self, requests: Any, cancel: CancelToken | None = None) -> list[Tensors]:
        self.batches.append(len(requests))
        self._wait(cancel)
        return self.stage.run_batch(requests, cancel)


@dataclass(frozen=True)
class Bad:
    """stage: by its name. tensors: in place of a good request's. status: it is answered with, None
    where it is none of the stage's business: its result may say what it likes."""

    stage: str
    tensors: Mapping[str, np.ndarray]
    status: Status | None


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


BAD = {
    "an index beyond a table": Bad("an index", {"at": np.array([[99]])}, Status.INTERNAL),
    "an index below a table": Bad("an index", {"at": np.array([[-11]])}, Status.INTERNAL),
    "a size that does not fit": Bad("a shape by data", {"at": np.array([[3]])}, Status.INTERNAL),
    "a size that is none": Bad("a shape by data", {"at": np.array([[-7]])}, Status.INTERNAL),
    "a row that is left out": Bad("rows by data", {"x": row(-1, 2, 3, 4)}, None),
    "not a number": Bad("plain", {"x": row(np.nan, 1, 2, 3)}, None),
    "infinite": Bad("plain", {"x": row(np.inf, -np.inf, 2, 3)}, None),
    "no rows": Bad("plain", {"x": np.zeros((0, 4), np.float32)}, None),
    "many rows": Bad("plain", {"x": np.ones((5000, 4), np.float32)}, None),
    "another width": Bad("plain", {"x": np.ones((1, 5), np.float32)}, Status.INVALID_ARGUMENT),
    "another rank": Bad("plain", {"x": np.ones(4, np.float32)}, Status.INVALID_ARGUMENT),
    "another datatype": Bad("plain", {"x": np.ones((1, 4))}, Status.INVALID_ARGUMENT),
    "another name": Bad("plain", {"z": row(1, 2, 3, 4)}, Status.INVALID_ARGUMENT),
    "rows that differ": Bad("an index", {"at": np.ones((2, 1), np.int64)}, Status.INVALID_ARGUMENT),
}


def good(name: str, number: int) -> Tensors:
    tensors = {"x": row(number + 1, 2, 3, 0.1 * number)}
    if name in ("an index", "a shape by data"):
        tensors["at"] = np.array([[number if name == "an index" else 4]])
    return tensors


@pytest.mark.parametrize("kind", BAD)
async def test_a_request_that_is_bad_at_any_place_of_a_batch_is_bad_alone(
    bench: MakeBench, kind: str
) -> None:
    bad = BAD[kind]
    for place in range(EIGHT):
        b = await bench(Real(bad.stage), credit=2 * EIGHT)
        first = b.send(tensors=good(bad.stage, 0))  # keeps the thread while the others gather
        asked = [good(bad.stage, number) for number in range(EIGHT)]
        asked[place] = (
            {**asked[place], **bad.tensors} if "z" not in bad.tensors else dict(bad.tensors)
        )
        sent = [b.send(tensors=tensors) for tensors in asked]
        assert b.model.gate is not None
        b.model.gate.set()
        assert set(await b.all_ended(first, *sent)) == {"ack"}
        answers = b.answers()
        assert len(answers) == EIGHT + 1
        assert max(b.model.batches) >= EIGHT - (bad.status is Status.INVALID_ARGUMENT)
        for number, tensors in enumerate(asked):
            found = answers[f"r{number + 2}"]
            if number == place and bad.status is not None:
                assert found.status is bad.status
                assert found.message
                continue
            assert found.status is Status.OK, found.message
            alone = stage(bad.stage).run(tensors)
            np.testing.assert_array_equal(found.outputs["y"], alone["y"])


def test_a_batch_whose_rows_cannot_be_told_apart_is_no_result() -> None:
    both = [{"x": row(1, 2, 3, 4)}, {"x": row(-1, 2, 3, 4)}]
    with pytest.raises(RunError, match="batch of 2 rows"):
        stage("rows by data").run_batch(both)


async def test_a_defect_in_telling_one_failure_costs_no_other_message_its_end(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = await bench(Real("an index"), credit=2 * EIGHT)
    told = b.server.not_computed
    asked = [good("an index", number) | {"at": np.array([[99]])} for number in range(EIGHT)]

    def tell(job: Any, status: Status, reason: str) -> None:
        if job.features.id == "r4":
            raise ZeroDivisionError("a defect")
        told(job, status, reason)

    monkeypatch.setattr(b.server, "not_computed", tell)
    first = b.send(tensors=good("an index", 0))
    sent = [b.send(tensors=tensors) for tensors in asked]
    assert b.model.gate is not None
    b.model.gate.set()
    ends = await b.all_ended(first, *sent)
    assert ends == ["ack" if number != 3 else "nak" for number in range(EIGHT + 1)]
