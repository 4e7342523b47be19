"""TensorRT, natively: an engine of this GPU, its own stream, pinned buffers, CUDA graphs.

One slot of buffers and one stream: runs of several threads take turns, which a GPU does anyway.

    1. feeds → pinned host buffers          (a copy on the CPU)
    2. pinned → device, execute_async_v3, device → pinned     on the stream, one CUDA graph a shape
    3. wait for the stream
    4. pinned → arrays that the caller owns
"""

from __future__ import annotations

import ctypes
import logging
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from shards.errors import ModelError, NotOnDevice, RunError, RunTerminated
from shards.runtimes.engine import Gpu
from shards.runtimes.runtime import CancelToken
from shards.runtimes.synthetic import SyntheticAnswer, random_feeds
from shards.specs import DTYPES, TensorSpec

log = logging.getLogger(__name__)

MOST_GRAPHS = 8  # shapes with a CUDA graph of their own; other shapes are launched one by one
WARM_RUNS = 5


class Cuda:
    """The few calls of CUDA's runtime that a run needs. Raises RunError with CUDA's own words."""

    def __init__(self, library: ModuleType | Any) -> None:
        self._cuda = library

    def _checked(self, result: tuple[Any, ...]) -> Any:
        error, *values = result
        if int(error) != 0:
            raise RunError(f"CUDA: {error}")
        return values[0] if values else None

    def gpu(self) -> Gpu:
        """The first GPU that this process sees."""
        about = self._checked(self._cuda.cudaGetDeviceProperties(0))
        name = about.name.decode() if isinstance(about.name, bytes) else str(about.name)
        return Gpu(name.rstrip("\0"), f"{about.major}.{about.minor}")

    def free_bytes(self) -> int:
        """Bytes of the GPU's memory that are free."""
        error, free, _ = self._cuda.cudaMemGetInfo()
        self._checked((error,))
        return int(free)

    def malloc(self, size: int) -> int:
        return int(self._checked(self._cuda.cudaMalloc(size)))

    def free(self, address: int) -> None:
        self._checked(self._cuda.cudaFree(address))

    def malloc_host(self, size: int) -> int:
        return int(self._checked(self._cuda.cudaMallocHost(size)))

    def free_host(self, address: int) -> None:
        self._checked(self._cuda.cudaFreeHost(address))

    def new_stream(self) -> int:
        return int(self._checked(self._cuda.cudaStreamCreate()))

    def end_stream(self, stream: int) -> None:
        self._checked(self._cuda.cudaStreamDestroy(stream))

    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._checked(self._cuda.cudaMemcpyAsync(target, source, size, kind, stream))

    def copy_to_host(self, target: int, source: int, size: int, stream: int) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._checked(self._cuda.cudaMemcpyAsync(target, source, size, kind, stream))

    def wait(self, stream: int) -> None:
        self._checked(self._cuda.cudaStreamSynchronize(stream))

    def begin_capture(self, stream: int) -> None:
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._checked(self._cuda.cudaStreamBeginCapture(stream, mode))

    def end_capture(self, stream: int) -> Any:
        """A graph that can be launched."""
        graph = self._checked(self._cuda.cudaStreamEndCapture(stream))
        try:
            return self._checked(self._cuda.cudaGraphInstantiate(graph, 0))
        finally:
            self._checked(self._cuda.cudaGraphDestroy(graph))

    def give_up_capture(self, stream: int) -> None:
        """End a capture that failed; CUDA has told the reason before."""
        self._cuda.cudaStreamEndCapture(stream)

    def launch(self, graph: Any, stream: int) -> None:
        self._checked(self._cuda.cudaGraphLaunch(graph, stream))

    def end_graph(self, graph: Any) -> None:
        self._checked(self._cuda.cudaGraphExecDestroy(graph))


class _Buffer:
    """A tensor's place on the host, pinned, and on the device; grows, and is freed by `close`."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.size = 0
        self.host = self.device = 0

    def reserve(self, size: int) -> bool:
        """Have room for `size` bytes. Whether the addresses are others now."""
        if self.device and size <= self.size:
            return False
        self.close()
        # TensorRT takes no null address, so an empty tensor has a byte.
        self.device = self._cuda.malloc(max(1, size))
        self.host = self._cuda.malloc_host(max(1, size))
        self.size = size
        return True

    def view(self, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
        """The pinned bytes as an array."""
        count = int(np.prod(shape, dtype=np.int64))
        raw = (ctypes.c_uint8 * max(1, count * dtype.itemsize)).from_address(self.host)
        array: np.ndarray = np.frombuffer(memoryview(raw), dtype, count).reshape(tuple(shape))
        return array

    def close(self) -> None:
        if self.device:
            self._cuda.free(self.device)
        if self.host:
            self._cuda.free_host(self.host)
        self.size = self.host = self.device = 0


class TensorRtRuntime:
    """A `Runtime` of one engine. `answer` is what the plain model gives for synthetic input, None
    where it cannot be asked.

    plan: a serialised engine of this GPU. trt, cuda: the modules `tensorrt` and
    `cuda.bindings.runtime`. Raises ModelError where the engine is not this GPU's, where its tensors
    are not those that the specifications name, or where a result's size depends on its values.
    """

    def __init__(
        self,
        plan: bytes,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        trt: Any,
        cuda: Any,
        answer: SyntheticAnswer | None = None,
        examples: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._answer = answer
        self._examples = examples
        self._cuda = Cuda(cuda)
        self._lock = threading.Lock()
        self._is_closed = False
        self._graphs: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._seen: set[tuple[tuple[int, ...], ...]] = set()
        self._can_capture = True  # as long as no capture has failed
        # Engine and context hold the runtime's memory, so the runtime lives as long as they do.
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise ModelError("the engine is not of this GPU and this TensorRT: it is built anew")
        names = {self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)}
        wanted = {spec.name for spec in (*self.inputs, *self.outputs)}
        if names != wanted:
            raise ModelError(
                f"the engine has {', '.join(sorted(names))} where the manifest names "
                f"{', '.join(sorted(wanted))}"
            )
        for spec in (*self.inputs, *self.outputs):
            made = np.dtype(trt.nptype(self._engine.get_tensor_dtype(spec.name)))
            if made != DTYPES[spec.datatype]:
                raise ModelError(f"the engine's {spec.name!r} is {made}, not {spec.datatype}")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise ModelError("TensorRT makes no context: the GPU has too little memory")
        self._dtypes = {
            spec.name: np.dtype(DTYPES[spec.datatype]) for spec in (*self.inputs, *self.outputs)
        }
        self._buffers = {name: _Buffer(self._cuda) for name in wanted}
        self._stream = self._cuda.new_stream()

    def run(
        self, feeds: Mapping[str, np.ndarray], cancel: CancelToken | None = None
    ) -> dict[str, np.ndarray]:
        """As `Runtime.run`. A run on the GPU cannot be stopped: a cancelled one ends, and its
        result is thrown away. Raises NotOnDevice for a shape outside the engine's profile."""
        if cancel is not None:
            cancel.begin(_nothing)
        try:
            with self._lock:
                made = self._run(feeds)
        finally:
            stopped = cancel is not None and not cancel.end()
        if stopped:
            raise RunTerminated("the run was cancelled or ran out of its budget")
        return made

    def _run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._is_closed:
            raise RunError("the runtime is closed: load the shard again")
        shapes = tuple(tuple(feeds[spec.name].shape) for spec in self.inputs)
        sizes = self._prepare(shapes)
        for spec in self.inputs:
            array = feeds[spec.name]
            self._buffers[spec.name].view(self._dtypes[spec.name], array.shape)[...] = array
        self._compute(shapes, sizes)
        # From here on the stream is idle: the pinned results may be read.
        return {
            spec.name: self._buffers[spec.name]
            .view(self._dtypes[spec.name], sizes[spec.name])
            .copy()
            for spec in self.outputs
        }

    def _prepare(self, shapes: tuple[tuple[int, ...], ...]) -> dict[str, tuple[int, ...]]:
        """Tell the context the shapes, and have room for all tensors. The shapes by name."""
        sizes: dict[str, tuple[int, ...]] = {}
        for spec, shape in zip(self.inputs, shapes, strict=True):
            if not self._context.set_input_shape(spec.name, shape):
                raise NotOnDevice(f"{spec.name!r} of shape {shape} is outside the engine's profile")
            sizes[spec.name] = shape
        for spec in self.outputs:
            shape = tuple(self._context.get_tensor_shape(spec.name))
            if any(size < 0 for size in shape):
                raise NotOnDevice(f"the size of {spec.name!r} depends on values")
            sizes[spec.name] = shape
        moved = False
        for name, shape in sizes.items():
            size = int(np.prod(shape, dtype=np.int64)) * self._dtypes[name].itemsize
            moved |= self._buffers[name].reserve(size)
        if moved:
            self._end_graphs()  # they know the old addresses
        for name, buffer in self._buffers.items():
            if not self._context.set_tensor_address(name, buffer.device):
                raise RunError(f"TensorRT takes no address for {name!r}")
        return sizes

    def _compute(
        self, shapes: tuple[tuple[int, ...], ...], sizes: Mapping[str, tuple[int, ...]]
    ) -> None:
        graph = self._graphs.get(shapes)
        is_due = self._can_capture and shapes in self._seen and len(self._graphs) < MOST_GRAPHS
        if graph is None and is_due:
            graph = self._captured(shapes, sizes)
        if graph is not None:
            self._cuda.launch(graph, self._stream)
        else:
            self._enqueue(sizes)
            self._seen.add(shapes)
        self._cuda.wait(self._stream)

    def _captured(
        self, shapes: tuple[tuple[int, ...], ...], sizes: Mapping[str, tuple[int, ...]]
    ) -> Any:
        """A graph of a run. A shape's first run prepares kernels, which no capture may contain, so
        that its second one is captured. None where TensorRT cannot be captured."""
        self._cuda.begin_capture(self._stream)
        try:
            self._enqueue(sizes)
        except RunError as error:
            self._cuda.give_up_capture(self._stream)
            log.warning("no CUDA graph for this model: %s", error)
            self._can_capture = False
            return None
        try:
            self._graphs[shapes] = self._cuda.end_capture(self._stream)
        except RunError as error:
            log.warning("no CUDA graph for this model: %s", error)
            self._can_capture = False
            return None
        return self._graphs[shapes]

    def _enqueue(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        for spec in self.inputs:
            buffer = self._buffers[spec.name]
            self._cuda.copy_to_device(
                buffer.device, buffer.host, self._bytes(spec.name, sizes), self._stream
            )
        if not self._context.execute_async_v3(self._stream):
            raise RunError("TensorRT did not run: its own messages are on standard error")
        for spec in self.outputs:
            buffer = self._buffers[spec.name]
            self._cuda.copy_to_host(
                buffer.host, buffer.device, self._bytes(spec.name, sizes), self._stream
            )

    def _bytes(self, name: str, sizes: Mapping[str, tuple[int, ...]]) -> int:
        return int(np.prod(sizes[name], dtype=np.int64)) * self._dtypes[name].itemsize

    def self_test(self, *, tolerance: float) -> float:
        """As `Runtime.self_test`, against the answer that was given to the constructor."""
        if self._answer is None:
            return 0.0
        try:
            apart = self._answer.apart(self.run(self.synthetic()))
        except RunError as error:
            raise ModelError(f"the engine fails where the plain model runs: {error}") from error
        if apart > tolerance:
            raise ModelError(f"the engine is off by {apart:.3g}, more than {tolerance:.3g}")
        self._answer = None
        return apart

    def synthetic(self) -> dict[str, np.ndarray]:
        """Seeded arrays that fit the inputs (see `random_feeds`)."""
        return random_feeds(self.inputs, self._examples)

    def warm(self) -> float:
        """As `Runtime.warm`. The second run makes the CUDA graph."""
        feeds = self.synthetic()
        times = []
        for _ in range(WARM_RUNS):
            begin = time.perf_counter()
            try:
                self.run(feeds)
            except RunError as error:
                if self._is_closed:
                    raise
                log.warning("not warmed: %s", error)
                return 0.0
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times[2:])

    def close(self) -> None:
        """As `Runtime.close`: the GPU's memory is free when it returns."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end_graphs()
            for buffer in self._buffers.values():
                buffer.close()
            self._cuda.end_stream(self._stream)
            self._context = self._engine = self._runtime = None

    def _end_graphs(self) -> None:
        for graph in self._graphs.values():
            self._cuda.end_graph(graph)
        self._graphs.clear()


def _nothing() -> None:
    """A run on a GPU cannot be stopped."""
