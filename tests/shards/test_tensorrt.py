"""TensorRT, against an API that fails on each misuse. No GPU takes part: see shards/README.md."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from shard_graphs import floats, mlp, whole
from strict_tensorrt import CudaError, StrictCuda, StrictTensorRt

from shards.errors import DeviceError, DoesNotFit, ModelError, NotOnDevice, RunError, RunTerminated
from shards.runtimes.by_tensorrt import load_tensorrt_runtime
from shards.runtimes.engine import (
    Engine,
    EngineRequest,
    Gpu,
    build,
    build_in_child,
    engine_key,
    serve,
    shapes_of,
)
from shards.runtimes.prepared import Settings
from shards.runtimes.runtime import CancelToken
from shards.runtimes.synthetic import TOLERANCE, deviation
from shards.runtimes.tensorrt import TensorRtRuntime
from shards.specs import TensorSpec
from swarm.models.artifact_cache import ArtifactCache

MLP = mlp(layers=2).SerializeToString()
SETTINGS = Settings(hashlib.sha256(MLP).hexdigest(), TOLERANCE)


class Machine:
    """A machine with a GPU: the two modules, and a builder that counts."""

    def __init__(self, **gpu: object) -> None:
        self.cuda = StrictCuda(**gpu)
        self.trt = StrictTensorRt(self.cuda)
        self.built = 0

    def build(
        self, model: bytes, request: EngineRequest, timing: bytes, stop: threading.Event
    ) -> Engine:
        self.built += 1
        return build(model, request, timing, self.trt)

    def load(
        self, folders: ArtifactCache | None = None, settings: Settings = SETTINGS, **options: str
    ) -> TensorRtRuntime:
        stop = threading.Event()
        return load_tensorrt_runtime(MLP, settings, options, folders, stop, self.build)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Machine]:
    """Make a machine's modules the ones that are imported."""

    def install(machine: Machine) -> Machine:
        monkeypatch.setitem(sys.modules, "tensorrt", machine.trt)
        monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", machine.cuda)
        return machine

    return install


@pytest.fixture
def machine(use: Callable[[Machine], Machine]) -> Machine:
    return use(Machine())


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    made = ArtifactCache(tmp_path / "cache")
    made.open()
    return made


def test_runs_of_changing_shapes_give_the_models_answers_and_closing_frees_all(
    machine: Machine,
) -> None:
    runtime = machine.load()
    assert runtime.self_test(tolerance=TOLERANCE) <= TOLERANCE
    runtime.warm()
    for rows in (1, 3, 3, 3, 1, 8, 3, 1, 1, 1):
        feeds = {"x": floats(rows, 16, seed=rows)}
        got = runtime.run(feeds)["y"]
        assert deviation(whole(MLP, feeds)["y"], got) <= TOLERANCE
    assert machine.cuda.launches > 0
    runtime.close()
    runtime.close()
    assert machine.cuda.everything_is_freed()
    with pytest.raises(RunError, match="closed"):
        runtime.run({"x": floats(1, 16)})


def test_results_stay_as_they_were_when_the_next_run_uses_the_buffers(machine: Machine) -> None:
    runtime = machine.load()
    first = runtime.run({"x": floats(2, 16)})["y"]
    kept = first.copy()
    runtime.run({"x": floats(2, 16, seed=9)})
    np.testing.assert_array_equal(first, kept)


def test_a_driver_that_captures_nothing_computes_all_the_same(
    use: Callable[[Machine], Machine], caplog: pytest.LogCaptureFixture
) -> None:
    machine = use(Machine(can_capture=False))
    runtime = machine.load()
    for _ in range(4):
        feeds = {"x": floats(2, 16)}
        assert deviation(whole(MLP, feeds)["y"], runtime.run(feeds)["y"]) <= TOLERANCE
    assert machine.cuda.launches == 0
    assert caplog.text.count("no CUDA graph") == 1, "it is not tried with each run"


def test_more_rows_than_the_profile_are_not_for_this_device(machine: Machine) -> None:
    runtime = machine.load(max_rows="4")
    runtime.run({"x": floats(4, 16)})
    with pytest.raises(NotOnDevice, match="outside the engine's profile"):
        runtime.run({"x": floats(5, 16)})


def test_an_error_of_the_gpu_is_the_runs_error(machine: Machine) -> None:
    runtime = machine.load()
    machine.cuda.fails_next = CudaError.cudaErrorMemoryAllocation
    with pytest.raises(RunError, match="CUDA"):
        runtime.run({"x": floats(1, 16)})
    runtime.run({"x": floats(1, 16)})


def test_a_cancelled_token_starts_no_run(machine: Machine) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(RunTerminated):
        machine.load().run({"x": floats(1, 16)}, token)


def test_an_engine_is_built_once_and_taken_from_the_cache(
    machine: Machine, cache: ArtifactCache
) -> None:
    first, second = machine.load(cache), machine.load(cache)
    assert machine.built == 1
    feeds = {"x": floats(2, 16)}
    np.testing.assert_array_equal(first.run(feeds)["y"], second.run(feeds)["y"])


def test_a_corrupt_engine_is_built_anew_and_never_read(
    machine: Machine, cache: ArtifactCache
) -> None:
    machine.load(cache)
    (plan,) = cache.folder.glob("made/*/engine.plan")
    plan.write_bytes(b"spoiled" + plan.read_bytes()[7:])
    machine.load(cache).run({"x": floats(1, 16)})
    assert machine.built == 2


def test_another_gpu_builds_its_own_engine_and_times_its_own_kernels(
    machine: Machine, cache: ArtifactCache, use: Callable[[Machine], Machine]
) -> None:
    machine.load(cache)
    machine.load(cache, precision="fp16")
    assert [each["timing"] for each in machine.trt.builds] == [b"", b"timed"]
    other = use(Machine(name="Another GPU"))
    other.load(cache).run({"x": floats(1, 16)})
    assert [each["timing"] for each in other.trt.builds] == [b""]


@pytest.mark.parametrize("change", ["model", "version", "gpu", "capability", "precision", "rows"])
def test_all_that_an_engine_depends_on_is_in_its_key(change: str) -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 16)),)

    def key(**other: str) -> str:
        shapes = shapes_of(inputs, {}, int(other.get("rows", "4")))
        request = EngineRequest(
            other.get("model", "a"),
            "fp16" if "precision" in other else "fp32",
            shapes=shapes,
        )
        gpu = Gpu(other.get("gpu", "g"), other.get("capability", "8.7"))
        return engine_key(request, other.get("version", "10.16"), gpu)

    assert key(**{change: "9"}) != key()
    assert key() == key()


def test_precision_is_a_flag_in_version_10_and_the_models_own_in_version_11(
    machine: Machine,
) -> None:
    machine.load(precision="int8")
    assert machine.trt.builds[0]["flags"] == ["fp16", "int8"]
    machine.trt.__version__ = "11.0.0"
    machine.load(precision="int8")
    assert machine.trt.builds[1]["flags"] == []
    with pytest.raises(ModelError, match="swarm model quantize --fp16"):
        machine.load(precision="fp16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp4"}, "fp32, fp16, int8"),
        ({"speed": "more"}, "it takes precision"),
        ({"max_rows": "many"}, "options of tensorrt"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_built(
    machine: Machine, options: dict[str, str], message: str
) -> None:
    with pytest.raises(DeviceError, match=message):
        machine.load(**options)
    assert machine.built == 0


def test_a_gpu_with_too_little_memory_is_not_touched(use: Callable[[Machine], Machine]) -> None:
    machine = use(Machine(free=100))
    with pytest.raises(DoesNotFit, match="RESOURCE_EXHAUSTED"):
        machine.load()
    assert machine.built == 0
    assert machine.cuda.everything_is_freed()


def test_an_axis_of_unknown_size_is_refused_with_its_name() -> None:
    inputs = (TensorSpec("x", "FP32", (-1, -1)),)
    with pytest.raises(ModelError, match="axis 1 of 'x'"):
        shapes_of(inputs, {}, 4)
    assert shapes_of(inputs, {"x": (1, 7)}, 4)["x"].most == (4, 7)


def test_the_child_takes_a_model_and_gives_an_engine(machine: Machine) -> None:
    request = {"digest": "d", "precision": "fp32", "workspace": 1 << 20}
    request["shapes"] = {"x": {"least": [1, 16], "usual": [1, 16], "most": [4, 16]}}
    head = json.dumps({"request": request, "timing": 3}).encode()
    sink = io.BytesIO()
    serve(io.BytesIO(head + b"\nabc" + MLP), sink, machine.trt)
    line, _, rest = sink.getvalue().partition(b"\n")
    assert rest.endswith(b"timed")
    assert json.loads(line)["plan"] == len(rest) - len(b"timed")
    assert machine.trt.builds[0]["timing"] == b"abc"


CHILD = """
import sys
head = sys.stdin.buffer.readline(); data = sys.stdin.buffer.read()
{act}
"""


def child(act: str) -> tuple[str, ...]:
    return (sys.executable, "-c", CHILD.format(act=act))


def test_a_real_child_process_gets_the_model_and_its_answer_is_read() -> None:
    act = "sys.stdout.buffer.write(b'{\"plan\": 4}\\nplan' + data[:5])"
    engine = build_in_child(b"model", EngineRequest("d"), b"", threading.Event(), child(act))
    assert (engine.plan, engine.timing) == (b"plan", b"model")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("sys.exit('the model is refused')", "the model is refused"),
        ("import os; os.kill(os.getpid(), 9)", "exit -9"),
        ("print('no JSON')", "cannot be read"),
    ],
)
def test_a_child_that_fails_is_told_with_its_last_words(act: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_in_child(b"model", EngineRequest("d"), b"", threading.Event(), child(act))


def test_a_build_that_nobody_wants_any_more_ends_with_its_process() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(ModelError, match="given up"):
        build_in_child(
            b"model", EngineRequest("d"), b"", stop, child("import time; time.sleep(60)")
        )
