"""The promises of every runtime, whichever library computes. RUNTIMES lists them all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto
from shard_graphs import floats, make, mlp, node, value, weights, whole

from shards.errors import ModelError, RunError, RunTerminated
from shards.runtimes.chain import DeviceChain, LoadingWay
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.runtime import CancelToken, Runtime
from shards.runtimes.synthetic import TOLERANCE, deviation

Load = Callable[[bytes], Runtime]


def chained(model: bytes) -> Runtime:
    """The same, behind a device that refuses every model."""

    def refuse(stop: threading.Event) -> Runtime:
        raise ModelError("not on this device")

    ways = [LoadingWay("none", refuse), LoadingWay("cpu", lambda stop: OrtRuntime(model))]
    return DeviceChain(ways, lambda change: None)


RUNTIMES: dict[str, Load] = {"onnxruntime": OrtRuntime, "a chain of devices": chained}

MLP = mlp(layers=2).SerializeToString()


@pytest.fixture(params=RUNTIMES)
def load(request: pytest.FixtureRequest) -> Load:
    return RUNTIMES[request.param]


def slow_model() -> bytes:
    """Some hundred ms on one core, in 600 operators."""
    nodes, last = [], "x"
    for index in range(300):
        nodes.append(node("MatMul", [last, "w"], [f"m{index}"]))
        nodes.append(node("Tanh", [f"m{index}"], [f"t{index}"]))
        last = f"t{index}"
    x, y = value("x", [512, 512]), value(last, [512, 512])
    return make(nodes, [x], [y], weights(1, w=(512, 512))).SerializeToString()


def lookup_model() -> bytes:
    """A model that fails on valid tensors: ids from 4 on are not in its table."""
    nodes = [node("Gather", ["table", "ids"], ["y"])]
    model = make(
        nodes, [value("ids", ["N"], TensorProto.INT64)], [value("y", None)], {"table": floats(4, 2)}
    )
    return model.SerializeToString()


class BegunToken(CancelToken):
    """A token that says when a run has begun with it."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def begin(self, stop: Callable[[], None]) -> None:
        super().begin(stop)
        self.begun.set()


def test_a_runtime_computes_what_the_model_says(load: Load) -> None:
    runtime = load(MLP)
    feeds = {"x": floats(3, 16)}
    got = runtime.run(feeds)
    assert list(got) == [spec.name for spec in runtime.outputs]
    assert deviation(whole(MLP, feeds)["y"], got["y"]) <= TOLERANCE


def test_the_tensors_of_a_runtime_are_those_of_its_model(load: Load) -> None:
    runtime = load(MLP)
    assert [(s.name, s.datatype, s.shape) for s in runtime.inputs] == [("x", "FP32", (-1, 16))]
    assert [(s.name, s.datatype, s.shape) for s in runtime.outputs] == [("y", "FP32", (-1, 16))]


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
def test_read_only_and_misaligned_views_of_a_buffer_are_fine(load: Load, offset: int) -> None:
    x = floats(2, 16)
    view = np.ndarray(x.shape, np.float32, buffer=bytes(offset) + x.tobytes(), offset=offset)
    assert not view.flags.writeable
    runtime = load(MLP)
    np.testing.assert_array_equal(runtime.run({"x": view})["y"], runtime.run({"x": x})["y"])


def test_outputs_belong_to_the_caller_and_feeds_stay_as_they_were(load: Load) -> None:
    runtime = load(MLP)
    x = floats(2, 16)
    first = runtime.run({"x": x})["y"]
    kept = first.copy()
    second = runtime.run({"x": floats(2, 16, seed=9)})["y"]
    second[:] = 0
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(x, floats(2, 16))


def test_several_threads_may_run_at_once(load: Load) -> None:
    runtime = load(MLP)
    feeds = [{"x": floats(2, 16, seed=seed)} for seed in range(64)]
    alone = [runtime.run(each)["y"] for each in feeds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda each: runtime.run(each, CancelToken())["y"], feeds))
    for expected, got in zip(alone, together, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_cancelling_from_another_thread_stops_a_run_that_has_begun(load: Load) -> None:
    runtime = load(slow_model())
    feeds = {"x": floats(512, 512)}
    token = BegunToken()

    def cancel() -> None:
        assert token.begun.wait(30)
        token.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(RunTerminated):
        runtime.run(feeds, token)
    canceller.join(30)
    # The next request has a token of its own, and is not affected.
    assert runtime.run(feeds, CancelToken()).keys() == {"t299"}


def test_a_cancelled_request_does_not_start(load: Load) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(RunTerminated, match="before this run began"):
        load(MLP).run({"x": floats(1, 16)}, token)


def test_cancelling_after_a_run_disturbs_no_later_run(load: Load) -> None:
    runtime = load(MLP)
    token = CancelToken()
    runtime.run({"x": floats(1, 16)}, token)
    token.cancel()
    assert runtime.run({"x": floats(1, 16)}, CancelToken()).keys() == {"y"}


def test_a_failure_inside_the_model_is_a_run_error_with_its_reason(load: Load) -> None:
    runtime = load(lookup_model())
    with pytest.raises(RunError, match="indices"):
        runtime.run({"ids": np.array([9])})
    assert runtime.run({"ids": np.array([3])})["y"].shape == (1, 2)


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"x": floats(1, 15)},
        {"x": floats(16)},
        {"x": floats(1, 16).astype(np.float64)},
        {"x": floats(1, 16), "more": floats(1)},
    ],
)
def test_feeds_that_do_not_fit_are_a_run_error(load: Load, feeds: dict[str, np.ndarray]) -> None:
    with pytest.raises(RunError):
        load(MLP).run(feeds)


def test_bytes_that_are_no_model_are_refused(load: Load) -> None:
    with pytest.raises(ModelError, match="refuses the model"):
        load(b"not a model")


def test_a_sound_model_passes_its_self_test_and_is_warmed(load: Load) -> None:
    runtime = load(MLP)
    assert runtime.self_test(tolerance=TOLERANCE) <= TOLERANCE
    assert 0 < runtime.warm() < 1000
    assert runtime.run({"x": floats(1, 16)}).keys() == {"y"}


def test_a_model_that_does_not_run_on_synthetic_input_is_served_all_the_same(load: Load) -> None:
    nodes = [
        node("Add", ["ids", "far"], ["beyond"]),
        node("Gather", ["table", "beyond"], ["y"]),
    ]
    ids = value("ids", ["N"], TensorProto.INT64)
    params = {"table": floats(10, 2), "far": np.array([-100])}
    runtime = load(make(nodes, [ids], [value("y", None)], params).SerializeToString())
    assert runtime.self_test(tolerance=TOLERANCE) == 0.0
    assert runtime.warm() == 0.0
    assert runtime.run({"ids": np.array([103])})["y"].shape == (1, 2)


def test_a_closed_runtime_says_so(load: Load) -> None:
    runtime = load(MLP)
    runtime.close()
    runtime.close()
    with pytest.raises(RunError, match="closed"):
        runtime.run({"x": floats(1, 16)})
    with pytest.raises(RunError, match="closed"):
        runtime.warm()
