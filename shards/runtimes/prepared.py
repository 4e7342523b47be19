"""A model as ONNX Runtime has optimised it for this machine, in files whose weights are mapped.

    model.onnx       the optimised graph; needs no optimisation any more
    weights.bin      its weights, in the layout that the machine computes with
    expected.npz     what the plain model answers to seeded input; absent where it cannot be asked
    about.json       the optimisation level

ONNX Runtime maps `weights.bin`: processes that load the same files share those pages, and a page
that no run touches takes no memory. Loading neither parses nor optimises. The files hold for one
version of the library and one processor only, so they stay on the machine.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shards.errors import ModelError
from shards.runtimes.ort import LOWER, Level, OrtRuntime, make_session, plain_answer
from shards.runtimes.synthetic import random_feeds, worst_deviation
from shards.specs import TensorSpec

MODEL, WEIGHTS, EXPECTED, ABOUT = "model.onnx", "weights.bin", "expected.npz", "about.json"
FORMAT = 1  # of these files; another one is another key
CPU_INFO = Path("/proc/cpuinfo")


class Folders(Protocol):
    """Where prepared models are kept."""

    def made(self, key: str, make: Callable[[Path], None]) -> Path:
        """The folder `key`, which `make(folder)` fills unless it is there already, whole.

        Raises `OSError`, and whatever `make` raises.
        """
        ...


def key_of(digest: str, **settings: object) -> str:
    """The key of a model prepared on this machine. digest: SHA-256 of the model's file.

    settings: all that the files depend on besides.
    """
    import onnxruntime

    about = {
        "format": FORMAT,
        "model": digest,
        "runtime": onnxruntime.__version__,
        "machine": [platform.machine(), _processor()],
        **settings,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    """Model and instruction sets of the first processor: layouts of weights depend on them."""
    try:
        first = CPU_INFO.read_text().partition("\n\n")[0]
    except OSError:
        return platform.processor()
    told = ("model name", "flags", "features", "cpu implementer", "cpu part")
    lines = [line for line in first.splitlines() if line.lower().startswith(told)]
    return "\n".join(lines)


def prepare(
    folder: Path,
    model: bytes | Path,
    *,
    inputs: Sequence[TensorSpec] | None,
    outputs: Sequence[TensorSpec] | None,
    level: Level,
    tolerance: float,
    threads: int,
    providers: Sequence[str],
    examples: Mapping[str, Sequence[int]] | None,
) -> None:
    """Write a model's files into `folder`, at `level` or, where that fails or deviates, at BASIC.

    Raises ModelError when the runtime refuses the model, or computes wrong values.
    """
    expected: dict[str, np.ndarray] | None = None
    for each in (level, *LOWER[level]):
        try:
            make_session(
                model,
                level=each,
                threads=threads,
                providers=providers,
                save_to=(folder / MODEL, WEIGHTS),
            )
            runtime = _runtime(folder, inputs, outputs, threads, providers, examples)
            if expected is None:
                feeds = random_feeds(runtime.inputs, examples)
                expected = plain_answer(model, runtime.outputs, feeds, threads)
            apart = 0.0
            if expected is not None:
                apart = runtime.deviation_from(expected)
            if apart > tolerance:
                raise ModelError(f"the optimised model is off by {apart:.3g}")
        except ModelError:
            if not LOWER[each]:
                raise
            continue
        (folder / ABOUT).write_text(json.dumps({"level": each}))
        if expected is not None:
            np.savez(folder / EXPECTED, **expected)  # type: ignore[arg-type]
        return


def load_prepared(
    folder: Path,
    *,
    inputs: Sequence[TensorSpec] | None,
    outputs: Sequence[TensorSpec] | None,
    tolerance: float,
    threads: int,
    providers: Sequence[str],
    examples: Mapping[str, Sequence[int]] | None,
) -> OrtRuntime:
    """A runtime of prepared files, self-tested against the plain model's answer.

    Raises ModelError where it deviates from that by more than `tolerance`, or does not load.
    """
    runtime = _runtime(folder, inputs, outputs, threads, providers, examples)
    try:
        runtime.level = json.loads((folder / ABOUT).read_bytes())["level"]
        expected: dict[str, np.ndarray] | None = None
        if (folder / EXPECTED).exists():
            with np.load(folder / EXPECTED, allow_pickle=False) as arrays:
                expected = dict(arrays)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"prepared files in {folder} cannot be read: {error}") from error
    if expected is not None and (apart := runtime.deviation_from(expected)) > tolerance:
        raise ModelError(f"the prepared model in {folder} is off by {apart:.3g}")
    return runtime


def _runtime(
    folder: Path,
    inputs: Sequence[TensorSpec] | None,
    outputs: Sequence[TensorSpec] | None,
    threads: int,
    providers: Sequence[str],
    examples: Mapping[str, Sequence[int]] | None,
) -> OrtRuntime:
    return OrtRuntime(
        folder / MODEL,
        inputs=inputs,
        outputs=outputs,
        threads=threads,
        providers=providers,
        level="none",
        examples=examples,
    )
