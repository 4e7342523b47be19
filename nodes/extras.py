"""Which extra of the package brings a library that is missing in this installation."""

from __future__ import annotations

from swarm.errors import InvalidArgument

# By the name that is imported; `pyproject.toml` has the packages. A library of several extras
# stands for the one that most commands need it for.
EXTRA_OF = {
    "onnx": "split",
    "onnxruntime": "node",
    "zstandard": "node",
    "onnx_ir": "quantize",
    "nats_server": "server",
    "psutil": "bench",
    "matplotlib": "bench",
    "zenoh": "bench",
    "zmq": "bench",
    "prometheus_client": "metrics",
    "dp_accounting": "privacy",
    "grpc": "gateway",
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
