"""TensorRT's and CUDA's Python API as far as it is used, strict: an order of calls, a missing wait
or a freed buffer that a GPU punishes with wrong numbers or a crash is an error here.

"Engines" are ONNX models that ONNX Runtime computes, so that results can be compared. Addresses are
those of real memory for the host, and of a table for the device: a copy that nobody waited for has
not happened yet.
"""

from __future__ import annotations

import ctypes
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from shards.runtimes.ort import make_session
from shards.specs import ORT_TYPES

OK = 0


class Misuse(AssertionError):
    """A use of the API that a GPU would punish."""


def must(holds: bool, rule: str) -> None:
    if not holds:
        raise Misuse(rule)


class CudaError(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorStreamCaptureUnsupported = 900


@dataclass
class Stream:
    """Work that was asked for and not waited for; a capture, while one is made."""

    pending: list[Callable[[], None]] = field(default_factory=list)
    captured: list[Callable[[], None]] | None = None
    is_ended: bool = False


class StrictCuda:
    """The module `cuda.bindings.runtime`."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice="up", cudaMemcpyDeviceToHost="down")
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, *, free: int = 8 << 30, name: str = "Strict GPU", can_capture: bool = True):
        self.free, self.name, self.can_capture = free, name, can_capture
        self.device: dict[int, bytearray] = {}
        self.host: dict[int, ctypes.Array[Any]] = {}
        self.streams: dict[int, Stream] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.launches = 0
        self.fails_next: int = OK
        self._next = 1 << 40
        self._poisoned: list[Any] = []

    def _address(self) -> int:
        self._next += 1 << 20
        return self._next

    def everything_is_freed(self) -> bool:
        open_streams = [s for s in self.streams.values() if not s.is_ended]
        return not (self.device or self.host or open_streams or self.graphs)

    def cudaGetDeviceProperties(self, _: int) -> tuple[Any, Any]:
        return OK, SimpleNamespace(name=self.name.encode() + b"\0\0", major=8, minor=7)

    def cudaMemGetInfo(self) -> tuple[Any, int, int]:
        return CudaError.cudaSuccess, self.free, 8 << 30

    def cudaMalloc(self, size: int) -> tuple[Any, int]:
        must(size > 0, "an allocation has at least one byte")
        address = self._address()
        self.device[address] = bytearray(size)
        return OK, address

    def cudaFree(self, address: int) -> tuple[Any]:
        must(address in self.device, "device memory is freed once")
        must(not any(s.pending for s in self.streams.values()), "nothing is freed under a run")
        del self.device[address]
        return (OK,)

    def cudaMallocHost(self, size: int) -> tuple[Any, int]:
        block = (ctypes.c_uint8 * size)()
        address = ctypes.addressof(block)
        self.host[address] = block
        return OK, address

    def cudaFreeHost(self, address: int) -> tuple[Any]:
        must(address in self.host, "pinned memory is freed once")
        block = self.host.pop(address)
        ctypes.memset(address, 0xEE, ctypes.sizeof(block))
        self._poisoned.append(block)  # who reads it later gets garbage, and no crash
        return (OK,)

    def cudaStreamCreate(self) -> tuple[Any, int]:
        address = self._address()
        self.streams[address] = Stream()
        return OK, address

    def cudaStreamDestroy(self, stream: int) -> tuple[Any]:
        must(not self.stream_of(stream).pending, "a stream is waited for before it ends")
        self.streams[stream].is_ended = True
        return (OK,)

    def stream_of(self, stream: int) -> Stream:
        must(stream in self.streams and not self.streams[stream].is_ended, "the stream is open")
        return self.streams[stream]

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        found = self.stream_of(stream)
        (found.pending if found.captured is None else found.captured).append(work)

    def cudaMemcpyAsync(
        self, target: int, source: int, size: int, kind: str, stream: int
    ) -> tuple[Any]:
        host, device = (source, target) if kind == "up" else (target, source)
        must(host in self.host, "the host's side is pinned memory that is not freed")
        must(device in self.device, "the device's side is memory that is not freed")
        must(size <= len(self.device[device]), "a copy ends inside the device's buffer")
        must(size <= ctypes.sizeof(self.host[host]), "a copy ends inside the host's buffer")

        def copy() -> None:
            must(device in self.device and host in self.host, "no graph uses freed buffers")
            if kind == "up":
                self.device[device][:size] = ctypes.string_at(host, size)
            else:
                ctypes.memmove(host, bytes(self.device[device][:size]), size)

        if kind == "down" and self.stream_of(stream).captured is None:
            ctypes.memset(host, 0xEE, size)  # garbage until somebody waits
        self.enqueue(stream, copy)
        return (OK,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any]:
        found = self.stream_of(stream)
        must(found.captured is None, "nobody waits inside a capture")
        if self.fails_next:
            error, self.fails_next = self.fails_next, OK
            found.pending.clear()
            return (error,)
        while found.pending:
            found.pending.pop(0)()
        return (OK,)

    def cudaStreamBeginCapture(self, stream: int, _: int) -> tuple[Any]:
        found = self.stream_of(stream)
        must(found.captured is None and not found.pending, "a capture begins on an idle stream")
        found.captured = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Any, Any]:
        found = self.stream_of(stream)
        must(found.captured is not None, "a capture was begun")
        work, found.captured = found.captured, None
        if not self.can_capture:
            return CudaError.cudaErrorStreamCaptureUnsupported, None
        return OK, work

    def cudaGraphInstantiate(self, graph: Any, _: int) -> tuple[Any, Any]:
        address = self._address()
        self.graphs[address] = graph
        return OK, address

    def cudaGraphDestroy(self, _: Any) -> tuple[Any]:
        return (OK,)

    def cudaGraphLaunch(self, graph: int, stream: int) -> tuple[Any]:
        must(graph in self.graphs, "a graph is launched before it is destroyed")
        self.launches += 1
        for work in self.graphs[graph]:
            self.enqueue(stream, work)
        return (OK,)

    def cudaGraphExecDestroy(self, graph: int) -> tuple[Any]:
        must(graph in self.graphs, "a graph is destroyed once")
        del self.graphs[graph]
        return (OK,)


class Context:
    """An execution context."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._is_prepared: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        must(name in self._engine.inputs, "only inputs are given shapes")
        least, most = self._engine.profile[name]
        if not all(lo <= size <= hi for lo, size, hi in zip(least, shape, most, strict=True)):
            return False
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        must(set(self._shapes) == set(self._engine.inputs), "all inputs have shapes first")
        return tuple(self._run(self._zeros())[name].shape)

    def set_tensor_address(self, name: str, address: int) -> bool:
        must(address in self._engine.cuda.device, "an address is of the device, and not freed")
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        cuda = self._engine.cuda
        names = [*self._engine.inputs, *self._engine.outputs]
        must(set(names) <= set(self._addresses), "every tensor has an address")
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        key = tuple(sorted(shapes.items()))
        if cuda.stream_of(stream).captured is not None:
            must(key in self._is_prepared, "a shape runs once before it is captured")
        self._is_prepared.add(key)

        def compute() -> None:
            feeds = {}
            for name in self._engine.inputs:
                must(addresses[name] in cuda.device, "no run reads freed memory")
                dtype = self._engine.dtypes[name]
                count = int(np.prod(shapes[name], dtype=np.int64))
                raw = np.frombuffer(bytes(cuda.device[addresses[name]]), dtype, count)
                feeds[name] = raw.reshape(shapes[name])
            for name, array in self._run(feeds).items():
                must(addresses[name] in cuda.device, "no run writes to freed memory")
                data = np.ascontiguousarray(array).tobytes()
                must(len(data) <= len(cuda.device[addresses[name]]), "a result fits its buffer")
                cuda.device[addresses[name]][: len(data)] = data

        cuda.enqueue(stream, compute)
        return True

    def _zeros(self) -> dict[str, np.ndarray]:
        return {n: np.zeros(s, self._engine.dtypes[n]) for n, s in self._shapes.items()}

    def _run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = self._engine.session.run(self._engine.outputs, feeds)
        return dict(zip(self._engine.outputs, values, strict=True))


class Engine:
    """A deserialized engine."""

    def __init__(self, plan: bytes, cuda: StrictCuda) -> None:
        head, _, model = plan.partition(b"\n")
        about = json.loads(head)
        self.gpu = about["gpu"]
        self.cuda = cuda
        self.session = make_session(model)
        args = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.inputs = [arg.name for arg in self.session.get_inputs()]
        self.outputs = [arg.name for arg in self.session.get_outputs()]
        names = {"FP32": np.float32, "INT64": np.int64, "FP16": np.float16, "UINT8": np.uint8}
        self.dtypes = {arg.name: np.dtype(names[ORT_TYPES[arg.type]]) for arg in args}
        self.profile = {name: (least, most) for name, (least, _, most) in about["profile"].items()}

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_dtype(self, name: str) -> Any:
        return self.dtypes[name]

    def create_execution_context(self) -> Context:
        return Context(self)


class StrictTensorRt:
    """The module `tensorrt`, of a version."""

    class Logger:
        WARNING = 2

        def __init__(self, _: int) -> None: ...

    MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    BuilderFlag = SimpleNamespace(FP16="fp16", INT8="int8")

    def __init__(self, cuda: StrictCuda, version: str = "10.16.0") -> None:
        self.__version__ = version
        self.cuda = cuda
        self.builds: list[dict[str, Any]] = []
        self.OnnxParser = self._parser

    def nptype(self, dtype: Any) -> Any:
        return dtype

    def Runtime(self, _: Any) -> Any:
        def deserialize(plan: bytes) -> Engine | None:
            engine = Engine(plan, self.cuda)
            return engine if engine.gpu == self.cuda.name else None

        return SimpleNamespace(deserialize_cuda_engine=deserialize)

    def Builder(self, _: Any) -> Any:
        made: dict[str, Any] = {"flags": [], "profile": {}, "timing": None, "model": None}
        self.builds.append(made)
        is_typed = int(self.__version__.split(".")[0]) >= 11

        def set_flag(flag: str) -> None:
            must(not is_typed, "TensorRT 11 has no flags of precision")
            made["flags"].append(flag)

        def set_shape(name: str, least: Any, usual: Any, most: Any) -> None:
            made["profile"][name] = (tuple(least), tuple(usual), tuple(most))

        def build(network: Any, config: Any) -> bytes:
            must(made["model"] is not None, "a model is parsed before it is built")
            must("workspace" in made, "the builder's memory is bounded")
            must(made["timing"] is not None, "kernels are timed once a GPU")
            about = {"gpu": self.cuda.name, "profile": made["profile"]}
            return json.dumps(about).encode() + b"\n" + bytes(made["model"])

        config = SimpleNamespace(
            set_memory_pool_limit=lambda pool, size: made.update({pool: size}),
            set_flag=set_flag,
            create_timing_cache=lambda data: data,
            set_timing_cache=lambda cache, _: made.update(timing=cache),
            get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"timed"),
            add_optimization_profile=lambda profile: None,
        )
        return SimpleNamespace(
            create_network=lambda flags: made,
            create_builder_config=lambda: config,
            create_optimization_profile=lambda: SimpleNamespace(set_shape=set_shape),
            build_serialized_network=build,
        )

    def _parser(self, network: dict[str, Any], _: Any) -> Any:
        def parse(model: bytes) -> bool:
            network["model"] = model
            return model[:4] != b"junk"

        return SimpleNamespace(parse=parse, num_errors=1, get_error=lambda _: "not a model")
