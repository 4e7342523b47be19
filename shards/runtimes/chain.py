"""A stage on an accelerator, with the next device behind it: a device that fails costs no request.

the first device that loads the model serves
a device that is slow to load (an engine is built for minutes) takes over when it is ready
a run that fails on a device, and succeeds on the next one, leaves the stage on the next one
a run that fails on both is the request's own fault: the stage stays where it is
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.errors import ModelError, NotOnDevice, RunError, RunTerminated
from shards.runtimes.runtime import CancelToken, Runtime
from shards.runtimes.synthetic import TOLERANCE
from shards.specs import TensorSpec

log = logging.getLogger(__name__)

CLOSING = 30.0  # seconds that closing waits for a device that is being prepared


@dataclass(frozen=True)
class DeviceChange:
    """A stage computes on `device` from now on; `why` is one line."""

    device: str
    why: str


Tell = Callable[[DeviceChange], None]


@dataclass(frozen=True)
class LoadingWay:
    """How a model is loaded on one device. make(stop) raises ModelError; a slow one ends soon, with
    ModelError, once `stop` is set."""

    device: str
    make: Callable[[threading.Event], Runtime]
    is_slow: bool = False


class DeviceChain:
    """A `Runtime` on the first device that can.

    `ways` are ordered from the best device to the CPU. tolerance: of the self-test of a device that
    takes over later. `tell` hears of each change of the device, from any thread. Raises the last
    device's ModelError where none loads the model.
    """

    def __init__(
        self,
        ways: Sequence[LoadingWay],
        tell: Tell,
        *,
        tolerance: float = TOLERANCE,
        maker: Callable[[], Callable[..., Any]] | None = None,
    ) -> None:
        self._tell = tell
        self._tolerance = tolerance
        self._maker = maker
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._has_no_spare = False  # the next device was tried, and does not do
        self._spare: Runtime | None = None  # loaded once, for a run that fails on the device
        slow = [way for way in ways if way.is_slow]
        self._ways = [way for way in ways if not way.is_slow]
        self._runtime, self._at = self._first(0)
        self.device = self._ways[self._at].device
        # The best device that was to be used by now: where `device` is another one, it has failed.
        self.wanted = self._ways[0].device
        self.inputs: tuple[TensorSpec, ...] = self._runtime.inputs
        self.outputs: tuple[TensorSpec, ...] = self._runtime.outputs
        self._builder: threading.Thread | None = None
        if slow:
            # A daemon: a process that ends does not wait for an engine.
            self._builder = threading.Thread(
                target=self._take_over_later, args=(slow[0],), name="device", daemon=True
            )

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """As `Runtime.run`; on the next device where this one fails."""
        runtime = self._runtime
        try:
            return runtime.run(feeds, cancel)
        except RunTerminated:
            raise
        except RunError as error:
            if self._stop.is_set():
                raise
            return self._run_on_next(runtime, feeds, cancel, error)

    def _run_on_next(
        self,
        failed: Runtime,
        feeds: Mapping[str, np.ndarray],
        cancel: CancelToken | None,
        error: RunError,
    ) -> dict[str, np.ndarray]:
        spare = self._next_of(failed)
        if spare is None:
            raise error
        made = spare.run(feeds, cancel)
        if not isinstance(error, NotOnDevice):
            self._leave(failed, spare, error)
        return made

    def _next_of(self, failed: Runtime) -> Runtime | None:
        """A runtime behind the one that failed; None where there is none."""
        with self._lock:
            if self._runtime is not failed:
                return self._runtime  # another run has seen the failure before
            if self._spare is not None or self._has_no_spare:
                return self._spare
            behind = self._at + 1 if self._is_on_a_way() else self._at
            if behind >= len(self._ways):
                return None
            spare: Runtime | None = None
            try:
                spare, at = self._first(behind)
                spare.self_test(tolerance=self._tolerance)
                spare.warm()
            except (ModelError, RunError) as none:
                log.warning("no other device: %s", none)
                if spare is not None:
                    spare.close()
                self._has_no_spare = True
                return None
            self._spare, self._spare_at = spare, at
            return spare

    def _is_on_a_way(self) -> bool:
        """Whether the device is one of the quick ways, and not one that took over later."""
        return self.device == self._ways[self._at].device

    def _leave(self, failed: Runtime, spare: Runtime, error: RunError) -> None:
        with self._lock:
            if self._runtime is not failed:
                return
            left = self.device
            self._runtime, self._at, self._spare = spare, self._spare_at, None
            self._has_no_spare = False
            self.device = self._ways[self._at].device
        failed.close()
        self._tell(DeviceChange(self.device, f"{left} failed: {error}"))

    def _first(self, start: int) -> tuple[Runtime, int]:
        for at in range(start, len(self._ways)):
            way = self._ways[at]
            try:
                return way.make(self._stop), at
            except ModelError as error:
                if at + 1 == len(self._ways):
                    raise
                self._tell(
                    DeviceChange(self._ways[at + 1].device, f"{way.device} is not used: {error}")
                )
        raise ModelError("no device to load the model on")

    def _take_over_later(self, way: LoadingWay) -> None:
        """Load on a slow device, compare it with the one that serves, and put it in its place."""
        try:
            runtime = way.make(self._stop)
            runtime.self_test(tolerance=self._tolerance)
            runtime.warm()
        except (ModelError, RunError) as error:
            if not self._stop.is_set():
                self.wanted = way.device
                self._tell(DeviceChange(self.device, f"{way.device} is not used: {error}"))
            return
        with self._lock:
            if not self._stop.is_set():
                # The device that served until now stands behind the new one.
                self._spare, self._spare_at = self._runtime, self._at
                self._runtime, self.device = runtime, way.device
                self.wanted = way.device
                taken = True
            else:
                taken = False
        if not taken:
            runtime.close()
            return
        self._tell(DeviceChange(way.device, "it is ready"))

    def self_test(self, *, tolerance: float) -> float:
        """As `Runtime.self_test`, on the first device that passes it."""
        while True:
            try:
                return self._runtime.self_test(tolerance=tolerance)
            except ModelError as error:
                if self._at + 1 >= len(self._ways):
                    raise
                left, failed = self.device, self._runtime
                self._runtime, self._at = self._first(self._at + 1)
                self.device = self._ways[self._at].device
                failed.close()
                self._tell(DeviceChange(self.device, f"{left} is not used: {error}"))

    def warm(self) -> float:
        """As `Runtime.warm`; then a slow device begins to get ready."""
        milliseconds = self._runtime.warm()
        if self._builder is not None and not self._builder.ident:
            self._builder.start()
        return milliseconds

    def close(self) -> None:
        """As `Runtime.close`; a device that is getting ready is given up."""
        self._stop.set()
        if self._builder is not None and self._builder.ident:
            self._builder.join(CLOSING)
        with self._lock:
            for runtime in (self._runtime, self._spare):
                if runtime is not None:
                    runtime.close()

    def maker(self) -> Callable[..., Any]:
        """A constructor of ONNX Runtime sessions of the same model, for weights that change (see
        `OrtRuntime.maker`). Raises ModelError where this chain has none."""
        if self._maker is None:
            raise ModelError("no weights can change on this device")
        return self._maker()
