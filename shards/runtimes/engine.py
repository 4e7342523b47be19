"""TensorRT engines: what one depends on, and the child process that builds one.

Building takes minutes and gigabytes, so a process of its own does it: the node goes on serving, and
the memory goes with the process. The model travels by the child's standard input, and the engine
comes back by its standard output: a model that is encrypted at rest never touches the disk.

    python -m shards.runtimes.engine     one JSON line, then the model  →  one JSON line, then
                                         the engine and the timing cache
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Literal

from shards.errors import ModelError
from shards.specs import TensorSpec

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
LONGEST_BUILD = 3600.0  # seconds
POLL = 0.2  # seconds between looks whether a build is still wanted
# From this major version on the network's own types are the precision: no builder flags.
STRONGLY_TYPED_FROM = 11
FORMAT = 1  # of the cached files; another one is another key


@dataclass(frozen=True)
class Shapes:
    """The least, the usual and the largest shape of one input: a profile's range."""

    least: tuple[int, ...]
    usual: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True)
class EngineRequest:
    """All that an engine depends on beside the machine. workspace: bytes that the builder may use.

    digest: SHA-256 of the model. shapes: of each input, by name.
    """

    digest: str
    precision: Precision = "fp32"
    workspace: int = 1 << 30
    shapes: Mapping[str, Shapes] = field(default_factory=dict)


@dataclass(frozen=True)
class Gpu:
    """name: as the driver tells it. capability: compute capability, as "8.7"."""

    name: str
    capability: str


@dataclass(frozen=True)
class Engine:
    """plan: the serialised engine. timing: the timing cache, b"" for none."""

    plan: bytes
    timing: bytes = b""


def engine_key(request: EngineRequest, version: str, gpu: Gpu) -> str:
    """The name of an engine in the cache: an engine of another GPU, version, precision, profile or
    model has another one."""
    about = {"format": FORMAT, "tensorrt": version, "gpu": asdict(gpu), **asdict(request)}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def timing_key(version: str, gpu: Gpu) -> str:
    """The name of the timing cache: measured kernels hold for all models of a GPU and a version."""
    about = {"format": FORMAT, "tensorrt": version, "gpu": asdict(gpu), "timing": True}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def shapes_of(
    inputs: Sequence[TensorSpec], examples: Mapping[str, Sequence[int]], most_rows: int
) -> dict[str, Shapes]:
    """The profile of a model: 1 to `most_rows` along a dynamic axis 0, other axes as in `examples`.

    Raises ModelError for another dynamic axis that no example fixes.
    """
    shapes = {}
    for spec in inputs:
        example = tuple(examples.get(spec.name, ()))
        usual = []
        for axis, size in enumerate(spec.shape):
            if size >= 0 or axis == 0:
                usual.append(size if size >= 0 else 1)
            elif len(example) == len(spec.shape):
                usual.append(int(example[axis]))
            else:
                raise ModelError(
                    f"TensorRT needs the size of axis {axis} of {spec.name!r}, which is dynamic: "
                    "export the model with fixed sizes"
                )
        most = list(usual)
        if spec.shape and spec.shape[0] < 0:
            most[0] = most_rows
        shapes[spec.name] = Shapes(tuple(usual), tuple(usual), tuple(most))
    return shapes


def build(model: bytes, request: EngineRequest, timing: bytes, trt: Any) -> Engine:
    """Build an engine in this process; `trt` is the module `tensorrt`.

    Works with TensorRT 10 and 11. Raises ModelError where TensorRT refuses the model.
    """
    typed = int(str(trt.__version__).split(".", 1)[0]) >= STRONGLY_TYPED_FROM
    if typed and request.precision == "fp16":
        raise ModelError(
            "this TensorRT takes the precision from the model: make one of halves with "
            "`swarm model quantize --fp16`, and leave out precision=fp16"
        )
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        errors = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise ModelError(f"TensorRT refuses the model: {errors}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace)
    if not typed and request.precision in ("fp16", "int8"):
        config.set_flag(trt.BuilderFlag.FP16)
    if not typed and request.precision == "int8":
        config.set_flag(trt.BuilderFlag.INT8)  # the ranges are the model's own (QDQ)
    config.set_timing_cache(config.create_timing_cache(timing), False)
    if request.shapes:
        profile = builder.create_optimization_profile()
        for name, shape in request.shapes.items():
            profile.set_shape(name, shape.least, shape.usual, shape.most)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ModelError("TensorRT built no engine: its own messages are on standard error")
    return Engine(bytes(plan), bytes(config.get_timing_cache().serialize()))


def build_in_child(
    model: bytes,
    request: EngineRequest,
    timing: bytes,
    stop: threading.Event,
    command: Sequence[str] = (sys.executable, "-m", "shards.runtimes.engine"),
) -> Engine:
    """Build an engine in a child process. Blocking; ends soon once `stop` is set.

    Raises ModelError where the child fails, takes longer than `LONGEST_BUILD`, or is given up.
    """
    head = json.dumps({"request": asdict(request), "timing": len(timing)}).encode() + b"\n"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        given: bytes | None = head + timing + model
        waited = 0.0
        while True:
            try:
                out, err = child.communicate(given, timeout=POLL)
                break
            except subprocess.TimeoutExpired:
                given = None  # communicate goes on with what it was given first
                waited += POLL
                if stop.is_set() or waited > LONGEST_BUILD:
                    child.kill()
                    child.communicate()
                    raise ModelError(
                        "the engine was given up" if stop.is_set() else "the engine took too long"
                    ) from None
    if child.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise ModelError(f"no engine was built (exit {child.returncode}): {last[0]}")
    line, _, rest = out.partition(b"\n")
    try:
        size = json.loads(line)["plan"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the builder's answer cannot be read: {error}") from error
    return Engine(rest[:size], rest[size:])


def serve(source: BinaryIO, sink: BinaryIO, trt: Any) -> None:
    """The child's work: one request in, one engine out. Raises ModelError."""
    head = json.loads(source.readline())
    told = dict(head["request"])
    told["shapes"] = {
        name: Shapes(*(tuple(each[key]) for key in ("least", "usual", "most")))
        for name, each in told["shapes"].items()
    }
    timing = source.read(head["timing"])
    engine = build(source.read(), EngineRequest(**told), timing, trt)
    sink.write(json.dumps({"plan": len(engine.plan)}).encode() + b"\n")
    sink.write(engine.plan + engine.timing)
    sink.flush()


def main() -> None:
    """Entry point of the child."""
    try:
        import tensorrt
    except ImportError as error:
        raise SystemExit(f"no tensorrt: {error}") from None
    # TensorRT prints messages: standard output is the engine's alone.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(sys.stdin.buffer, answer, tensorrt)
    except ModelError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
