"""A model as ONNX Runtime has optimised it for this machine, in files whose weights are mapped.

    model.onnx       the optimised graph; needs no optimisation any more
    weights.bin      its weights, in the layout that the machine computes with
    expected.npz     what the plain model answers to seeded input; absent where it cannot be asked
    about.json       the optimisation level, and whether there is an answer to compare with

ONNX Runtime maps `weights.bin`: processes that load the same files share those pages, and a page
that no run touches takes no memory. Loading neither parses nor optimises. The files hold for one
version of the library and one processor only, so they stay on the machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np

from shards.errors import ModelError
from shards.runtimes.ort import LOWER, Level, Model, OrtRuntime, make_session, plain_answer
from shards.runtimes.synthetic import SyntheticAnswer
from shards.specs import TensorSpec

log = logging.getLogger(__name__)

MODEL, WEIGHTS, EXPECTED, ABOUT = "model.onnx", "weights.bin", "expected.npz", "about.json"
FORMAT = 2  # of these files; another one is another key
CPU_INFO = Path("/proc/cpuinfo")


class Folders(Protocol):
    """Where prepared models are kept."""

    def made(self, key: str, make: Callable[[Path], None]) -> Path:
        """The folder `key`, which `make(folder)` fills unless it is there already, whole.

        Raises `OSError`, and whatever `make` raises.
        """
        ...


@dataclass(frozen=True)
class Settings:
    """Of a model and its self-test: see `OrtRuntime` and `shards.runtimes.load.load_stage`.

    digest: SHA-256 of the model's file.
    """

    digest: str
    tolerance: float
    level: Level = "all"
    threads: int = 1
    inputs: Sequence[TensorSpec] | None = None
    outputs: Sequence[TensorSpec] | None = None
    examples: Mapping[str, Sequence[int]] | None = None


def runtime_of(model: Model, settings: Settings, **more: Any) -> OrtRuntime:
    """A runtime of the model with these settings. more: arguments of `OrtRuntime`, beside and in
    place of them. Raises as `OrtRuntime`."""
    given = {
        "inputs": settings.inputs,
        "outputs": settings.outputs,
        "threads": settings.threads,
        "level": settings.level,
        "examples": settings.examples,
    }
    return OrtRuntime(model, **(given | more))


def load_prepared(
    folders: Folders, model: Callable[[], bytes | Path], settings: Settings
) -> OrtRuntime:
    """A runtime of prepared files, self-tested against the plain model's answer.

    `model()` is called where they have to be prepared first; it returns the verified model or its
    file, and may raise. Raises ModelError where the runtime refuses the model, or computes wrong
    values, and `OSError` where the files cannot be written or read.
    """
    folder = folders.made(key_of(settings), lambda folder: _prepare(folder, model(), settings))
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        runtime = runtime_of(folder / MODEL, settings, level=about["level"], prepared=True)
        expected = _read(folder / EXPECTED, about["scales"]) if about["tested"] else None
    except (ValueError, KeyError, BadZipFile) as error:
        raise ModelError(f"prepared files in {folder} cannot be read: {error}") from error
    return compared(runtime, expected, settings, f"the prepared model in {folder}")


def compared(
    runtime: OrtRuntime,
    expected: SyntheticAnswer | None,
    settings: Settings,
    title: str,
) -> OrtRuntime:
    """The runtime, if it gives this answer to synthetic input. Raises ModelError."""
    if expected is None:
        log.warning("no self-test of %s: there was none that the plain model passes", title)
        return runtime
    apart = runtime.deviation_from(expected)
    if apart > settings.tolerance:
        raise ModelError(f"{title} is off by {apart:.3g}")
    return runtime


def key_of(settings: Settings) -> str:
    """The name of a prepared model on this machine: a hash of all that it depends on."""
    import onnxruntime

    about = {
        "format": FORMAT,
        "model": settings.digest,
        "tolerance": settings.tolerance,
        "level": settings.level,
        "examples": {name: list(shape) for name, shape in (settings.examples or {}).items()},
        "runtime": onnxruntime.__version__,
        "machine": [platform.machine(), _processor()],
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    """Model and instruction sets of the first processor: layouts of weights depend on them."""
    try:
        first = CPU_INFO.read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return platform.processor()
    told = ("model name", "flags", "features", "cpu implementer", "cpu part")
    return "\n".join(line for line in first.splitlines() if line.lower().startswith(told))


def _prepare(folder: Path, model: bytes | Path, settings: Settings) -> None:
    """Write a model's files. Raises as `prepare`."""

    def clear() -> None:
        for written in (MODEL, WEIGHTS):
            (folder / written).unlink(missing_ok=True)

    level, expected = prepare(
        model, settings, (folder / MODEL, WEIGHTS), lambda: folder / MODEL, clear
    )
    if expected is not None:
        np.savez(folder / EXPECTED, **expected.tensors)  # type: ignore[arg-type]
    scales = {} if expected is None else dict(expected.scales)
    about = {"level": level, "tested": expected is not None, "scales": scales}
    (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def prepare(
    model: bytes | Path,
    settings: Settings,
    save_to: tuple[Path, str],
    saved: Callable[[], Model],
    clear: Callable[[], None],
) -> tuple[Level, SyntheticAnswer | None]:
    """Save a model optimised, at the level asked for or, where that fails or deviates, at BASIC.

    Returns that level, and the plain model's answer to synthetic input, None where it cannot be
    asked. save_to: see `make_session`; saved(): what it holds now; clear(): lets it hold nothing.
    Raises ModelError.
    """
    expected: SyntheticAnswer | None = None
    for level in (settings.level, *LOWER[settings.level]):
        try:
            make_session(model, level=level, threads=settings.threads, save_to=save_to)
            runtime = runtime_of(saved(), settings, level=level, prepared=True)
            if expected is None:
                expected = plain_answer(
                    model,
                    runtime.outputs,
                    runtime.synthetic(),
                    tolerance=settings.tolerance,
                    threads=settings.threads,
                )
            apart = 0.0 if expected is None else runtime.deviation_from(expected)
            if apart > settings.tolerance:
                raise ModelError(f"level {level!r} is off by {apart:.3g}: do not serve it")
        except ModelError as error:
            clear()
            if not LOWER[level]:
                raise
            log.warning("preparing a model at a lower level: %s", error)
            continue
        return level, expected
    raise AssertionError("the lowest level returns or raises")


def _read(file: Path, scales: Mapping[str, float]) -> SyntheticAnswer:
    with np.load(file, allow_pickle=False) as arrays:
        return SyntheticAnswer(dict(arrays), scales)
