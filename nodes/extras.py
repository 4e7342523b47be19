"""Which extra of the package brings a library that is missing in this installation."""

from __future__ import annotations

import shutil
import sys
from collections import ChainMap
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from nodes.feature import MissingExtra
from nodes.features import features

# By the name that is imported; `pyproject.toml` has the packages.
_CORE = {
    "onnx": "split",
    "onnxruntime": "node",
    "zstandard": "node",
    "nats_server": "server",  # a program
    "psutil": "bench",
    "matplotlib": "bench",
    "zenoh": "bench",
    "zmq": "bench",
    "opentelemetry": "otel",
    "tensorrt": "tensorrt",
    "cuda": "tensorrt",
}
# Extras that commands need together: by name, with an option that is given, or `no` option.
TOGETHER: dict[str, Sequence[str]] = {
    "demo": ("node", "server", "split"),
    "up": ("node", "split"),
    "up no --nats": ("server",),
}


def extra_of() -> dict[str, str]:
    """The extra that brings a library, by the name that is imported; a library of several extras
    stands for the one that most commands need it for."""
    return dict(ChainMap(*(dict(each.extras) for each in features()), _CORE))


def missing_extra(error: ImportError, what: str = "this") -> MissingExtra | None:
    """The error that says what to install; None where an extra would not bring the module. what:
    needs it."""
    module = (error.name or "").partition(".")[0]
    extra = extra_of().get(module)
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return MissingExtra(f"{what} needs {module}: pip install 'swarm-mesh[{extra}]'")


def server_program() -> str | None:
    """The nats-server beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


def is_there(name: str) -> bool:
    """Whether a library, or the program, of an extra is installed."""
    return server_program() is not None if name == "nats_server" else find_spec(name) is not None


def lacking(asked: Iterable[str]) -> MissingExtra | None:
    """The error that says all that a command lacks, before it begins; None where nothing lacks.
    asked: keys of `TOGETHER`, or of what features add to it; others need nothing."""
    together = ChainMap(TOGETHER, *(dict(each.needs) for each in features()))
    extras = sorted({extra for words in asked for extra in together.get(words, ())})
    found = extra_of().items()
    modules = {name: extra for name, extra in found if extra in extras and not is_there(name)}
    if not modules:
        return None
    needed = ",".join(extra for extra in extras if extra in modules.values())
    return MissingExtra(
        f"this command needs {', '.join(modules)}: pip install 'swarm-mesh[{needed}]'"
    )
