"""A device that fails costs no request: the next one goes on, and somebody hears of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest
from shard_graphs import floats, mlp

from shards.errors import DeviceError, ModelError, NotOnDevice, RunError, RunTerminated
from shards.runtimes.chain import DeviceChain, DeviceChange, LoadingWay
from shards.runtimes.device import BY_ITSELF, DeviceChoice, order_of, parse_options
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.runtime import CancelToken, Runtime
from shards.runtimes.synthetic import TOLERANCE

MLP = mlp(layers=2).SerializeToString()
FEEDS = {"x": floats(2, 16)}


class Accelerator(OrtRuntime):
    """Computes as ONNX Runtime does, and fails where it is told to."""

    def __init__(self) -> None:
        super().__init__(MLP)
        self.fails_with: RunError | None = None
        self.runs = 0

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        self.runs += 1
        if self.fails_with is not None:
            raise self.fails_with
        return super().run(feeds, cancel)


class Devices:
    """An accelerator before a CPU, and the events of the chain."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.accelerator = Accelerator()
        self.refuses: ModelError | None = None
        self.ready = threading.Event()
        self.told: list[DeviceChange] = []
        self.heard = threading.Event()
        self.chain = self.load(is_slow) if not is_slow else None
        self.is_slow = is_slow

    def accelerate(self, stop: threading.Event) -> Runtime:
        if self.is_slow:
            while not self.ready.wait(0.01):
                if stop.is_set():
                    raise ModelError("given up")
        if self.refuses is not None:
            raise self.refuses
        return self.accelerator

    def load(self, is_slow: bool = False) -> DeviceChain:
        self.is_slow = is_slow
        ways = [
            LoadingWay("gpu", self.accelerate, is_slow),
            LoadingWay("cpu", lambda stop: OrtRuntime(MLP)),
        ]
        return DeviceChain(ways, self.tell, tolerance=TOLERANCE)

    def tell(self, change: DeviceChange) -> None:
        self.told.append(change)
        self.heard.set()


def test_a_run_that_fails_on_the_device_is_answered_by_the_next_one_which_stays() -> None:
    devices = Devices()
    chain = devices.load()
    before = chain.run(FEEDS)["y"]
    devices.accelerator.fails_with = RunError("the GPU has fallen off the bus")
    np.testing.assert_array_equal(chain.run(FEEDS)["y"], before)
    assert chain.device == "cpu"
    assert chain.wanted == "gpu"
    assert devices.told == [DeviceChange("cpu", "gpu failed: the GPU has fallen off the bus")]
    runs = devices.accelerator.runs
    chain.run(FEEDS)
    assert devices.accelerator.runs == runs
    chain.close()
    with pytest.raises(RunError, match="closed"):
        chain.run(FEEDS)


def test_a_request_that_fails_on_both_is_at_fault_and_the_device_stays() -> None:
    devices = Devices()
    chain = devices.load()
    wrong = {"x": floats(2, 5)}
    with pytest.raises(RunError):
        chain.run(wrong)
    assert chain.device == "gpu"
    assert devices.told == []


def test_a_run_outside_the_devices_profile_is_done_by_the_next_one_alone() -> None:
    devices = Devices()
    chain = devices.load()
    devices.accelerator.fails_with = NotOnDevice("too many rows")
    chain.run(FEEDS)
    devices.accelerator.fails_with = None
    assert chain.device == "gpu"
    assert devices.told == []


def test_a_cancelled_run_is_no_failure_of_the_device() -> None:
    devices = Devices()
    chain = devices.load()
    token = CancelToken()
    token.cancel()
    with pytest.raises(RunTerminated):
        chain.run(FEEDS, token)
    assert chain.device == "gpu"


def test_a_device_that_does_not_load_the_model_is_passed_over() -> None:
    devices = Devices()
    devices.refuses = ModelError("no such operator")
    chain = devices.load()
    assert chain.device == "cpu"
    assert chain.wanted == "gpu"
    assert devices.told == [DeviceChange("cpu", "gpu is not used: no such operator")]
    chain.run(FEEDS)


def test_a_device_that_computes_wrong_values_never_serves() -> None:
    class Wrong(Accelerator):
        def run(
            self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
        ) -> dict[str, np.ndarray]:
            return {name: array + 1 for name, array in super().run(feeds, cancel).items()}

    devices = Devices()
    devices.accelerator = Wrong()
    chain = devices.load()
    assert chain.self_test(tolerance=TOLERANCE) <= TOLERANCE
    assert chain.device == "cpu"
    assert "is not used" in devices.told[0].why


def test_where_no_device_loads_the_model_the_last_error_is_raised() -> None:
    def refuse(stop: threading.Event) -> Runtime:
        raise ModelError("not here")

    with pytest.raises(ModelError, match="not here"):
        DeviceChain([LoadingWay("gpu", refuse), LoadingWay("cpu", refuse)], lambda change: None)


def test_a_slow_device_takes_over_when_it_is_ready_and_the_first_one_stands_behind_it() -> None:
    devices = Devices(is_slow=True)
    chain = devices.load(is_slow=True)
    chain.warm()
    before = chain.run(FEEDS)["y"]
    assert chain.device == "cpu"
    devices.ready.set()
    assert devices.heard.wait(10)
    assert (chain.device, devices.told[0].why) == ("gpu", "it is ready")
    runs = devices.accelerator.runs
    np.testing.assert_array_equal(chain.run(FEEDS)["y"], before)
    assert devices.accelerator.runs == runs + 1
    devices.accelerator.fails_with = RunError("lost")
    np.testing.assert_array_equal(chain.run(FEEDS)["y"], before)
    assert chain.device == "cpu"
    chain.close()


def test_closing_gives_up_a_device_that_is_getting_ready() -> None:
    devices = Devices(is_slow=True)
    chain = devices.load(is_slow=True)
    chain.warm()
    chain.close()
    assert devices.told == []
    assert not [thread for thread in threading.enumerate() if thread.name == "device"]


def test_auto_takes_a_gpu_where_there_is_one_and_the_cpu_elsewhere() -> None:
    assert order_of(DeviceChoice("auto"), ("cpu",)) == ("cpu",)
    assert order_of(DeviceChoice("auto"), ("cpu", "cuda", "openvino")) == BY_ITSELF
    assert order_of(DeviceChoice("tensorrt"), ("cpu", "cuda", "tensorrt")) == (
        "tensorrt",
        "cuda",
        "cpu",
    )


def test_a_device_that_is_not_there_is_refused_with_what_to_install() -> None:
    with pytest.raises(DeviceError, match="pip install onnxruntime-gpu"):
        order_of(DeviceChoice("cuda"), ("cpu",))
    with pytest.raises(DeviceError, match="swarm doctor"):
        DeviceChoice("abacus")


def test_options_are_pairs() -> None:
    assert parse_options("a=1, b=x=y,") == {"a": "1", "b": "x=y"}
    with pytest.raises(DeviceError, match="NAME=VALUE"):
        parse_options("fast")


def test_a_next_device_that_does_not_run_is_freed_and_the_run_fails_as_on_the_first() -> None:
    class Unfit(OrtRuntime):
        closed = False

        def self_test(self, *, tolerance: float = TOLERANCE) -> float:
            raise RunError("it does not run")

        def close(self) -> None:
            self.closed = True
            super().close()

    accelerator, unfit = Accelerator(), Unfit(MLP)
    told: list[DeviceChange] = []
    ways = [LoadingWay("gpu", lambda stop: accelerator), LoadingWay("cpu", lambda stop: unfit)]
    chain = DeviceChain(ways, told.append)
    accelerator.fails_with = RunError("the GPU has fallen off the bus")
    with pytest.raises(RunError, match="off the bus"):
        chain.run(FEEDS)
    assert (chain.device, told, unfit.closed) == ("gpu", [], True)
    chain.close()


def test_a_next_device_that_does_not_do_is_tried_once() -> None:
    accelerator = Accelerator()
    tried: list[str] = []

    def refuse(stop: threading.Event) -> Runtime:
        tried.append("cpu")
        raise ModelError("not here either")

    chain = DeviceChain(
        [LoadingWay("gpu", lambda stop: accelerator), LoadingWay("cpu", refuse)], lambda _: None
    )
    accelerator.fails_with = RunError("broken")
    for _ in range(3):
        with pytest.raises(RunError, match="broken"):
            chain.run(FEEDS)
    assert tried == ["cpu"]
