"""Which extra of the package brings a library that is missing in this installation."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from swarm.errors import InvalidArgument

# By the name that is imported; `pyproject.toml` has the packages. A library of several extras
# stands for the one that most commands need it for.
EXTRA_OF = {
    "onnx": "split",
    "onnxruntime": "node",
    "zstandard": "node",
    "onnx_ir": "quantize",
    "nats_server": "server",  # a program
    "psutil": "bench",
    "matplotlib": "bench",
    "zenoh": "bench",
    "zmq": "bench",
    "prometheus_client": "metrics",
    "dp_accounting": "privacy",
    "grpc": "gateway",
    "grpc_reflection": "gateway",
    "orjson": "gateway",
    "google": "gateway",
    "jwt": "gateway",
    "uvicorn": "gateway",
    "httptools": "gateway",
    "av": "perception",
    "cv2": "perception",
    "linuxpy": "perception",
    "starlette": "dashboard",
    "tokenizers": "language",
    "jinja2": "language",
    "llguidance": "grammar",
    "opentelemetry": "otel",
    "tensorrt": "tensorrt",
    "cuda": "tensorrt",
    "textual": "top",
}
# Extras that commands need together: by name, with an option that is given, or `no` option.
TOGETHER = {
    "demo": ("node", "server", "split"),
    "up": ("node", "split"),
    "up no --nats": ("server",),
}


class MissingExtra(InvalidArgument):
    """An extra of the package is not installed; no other try of the same installation helps."""


def missing_extra(error: ImportError, what: str = "this") -> MissingExtra | None:
    """The error that says what to install; None where an extra would not bring the module. what:
    needs it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
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


def lacking(asked: Iterable[str], more: Mapping[str, Sequence[str]]) -> MissingExtra | None:
    """The error that says all that a command lacks, before it begins; None where nothing lacks.
    asked: keys of `TOGETHER`, or of what features add to it; others need nothing."""
    together = {**TOGETHER, **more}
    extras = sorted({extra for words in asked for extra in together.get(words, ())})
    modules = [name for name, extra in EXTRA_OF.items() if extra in extras and not is_there(name)]
    if not modules:
        return None
    needed = ",".join(extra for extra in extras if extra in {EXTRA_OF[name] for name in modules})
    return MissingExtra(
        f"this command needs {', '.join(modules)}: pip install 'swarm-mesh[{needed}]'"
    )
