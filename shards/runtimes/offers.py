"""What this machine can compute with, and why not with the rest."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shards.errors import DeviceError
from shards.runtimes.device import CPU, INSTALL, PROVIDERS, TENSORRT
from shards.runtimes.memory import free_bytes

PRECISIONS = {CPU: ("fp32", "int8"), "xnnpack": ("fp32", "int8")}
USUAL_PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Offer:
    """One device. why_not: one line, "" where the device is there. install: how to get it.

    memory: bytes that are free for it, None where nobody tells. by: the library.
    """

    device: str
    by: str
    why_not: str = ""
    install: str = ""
    precisions: tuple[str, ...] = USUAL_PRECISIONS
    memory: int | None = None

    @property
    def is_there(self) -> bool:
        return not self.why_not


def offers() -> list[Offer]:
    """Every device that this project knows, those that are there and those that are not."""
    return [*_by_onnxruntime(), _tensorrt()]


def _by_onnxruntime() -> list[Offer]:
    version, providers = _onnxruntime()
    made = []
    for device, provider in PROVIDERS.items():
        why = "" if provider in providers else f"not in this build of onnxruntime ({version})"
        if not version:
            why = "onnxruntime is not installed"
        made.append(
            Offer(
                device,
                f"onnxruntime {version}".strip(),
                why,
                INSTALL.get(device, "pip install 'swarm-mesh[node]'") if why else "",
                PRECISIONS.get(device, USUAL_PRECISIONS),
                free_bytes() if device == CPU else None,
            )
        )
    return made


def offered_devices(*, by_onnxruntime_alone: bool = False) -> tuple[str, ...]:
    """The names of the devices that are there. TensorRT is imported to find out, unless told."""
    there = _by_onnxruntime() if by_onnxruntime_alone else offers()
    return tuple(offer.device for offer in there if offer.is_there)


def load_tensorrt() -> tuple[Any, Any]:
    """The modules `tensorrt` and CUDA's runtime. Raises DeviceError."""
    try:
        return import_module("tensorrt"), _cuda_runtime()
    except ImportError as error:
        raise DeviceError(f"TensorRT is not there ({error}): {INSTALL[TENSORRT]}") from error


def _onnxruntime() -> tuple[str, tuple[str, ...]]:
    try:
        library = import_module("onnxruntime")
    except ImportError:
        return "", ()
    return str(library.__version__), tuple(library.get_available_providers())


def _tensorrt() -> Offer:
    absent = [name for name in ("tensorrt", "cuda") if find_spec(name) is None]
    if absent:
        names = {"tensorrt": "tensorrt", "cuda": "cuda-python"}
        why = f"{' and '.join(names[name] for name in absent)} not installed"
        return Offer(TENSORRT, "tensorrt", why, INSTALL[TENSORRT])
    from shards.runtimes.tensorrt import Cuda

    try:
        trt, cuda = load_tensorrt()
        memory, gpu = Cuda(cuda).free_bytes(), Cuda(cuda).gpu()
    except Exception as error:  # a driver that is missing raises what it likes
        return Offer(TENSORRT, "tensorrt", f"it does not start: {error}", INSTALL[TENSORRT])
    by = f"tensorrt {trt.__version__} on {gpu.name}"
    return Offer(TENSORRT, by, memory=memory)


def _cuda_runtime() -> Any:
    """cuda-python from 12.6 on, or before."""
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError:
        return import_module("cuda.cudart")
