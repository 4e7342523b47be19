"""Where a stage computes: the devices by name, and the settings that one of them takes.

A device is reached by ONNX Runtime's execution provider of that device, or by a runtime of its own.
`auto` is the first of `BY_ITSELF` that this machine has. Another device is taken where it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from shards.errors import DeviceError

AUTO, CPU, CUDA, TENSORRT = "auto", "cpu", "cuda", "tensorrt"

# ONNX Runtime's name of each device. `tensorrt-ort` is TensorRT by ONNX Runtime, and `tensorrt` is
# TensorRT natively.
PROVIDERS: Mapping[str, str] = MappingProxyType(
    {
        CPU: "CPUExecutionProvider",
        CUDA: "CUDAExecutionProvider",
        "tensorrt-ort": "TensorrtExecutionProvider",
        "openvino": "OpenVINOExecutionProvider",
        "migraphx": "MIGraphXExecutionProvider",
        "directml": "DmlExecutionProvider",
        "coreml": "CoreMLExecutionProvider",
        "qnn": "QNNExecutionProvider",
        "xnnpack": "XnnpackExecutionProvider",
        "acl": "ACLExecutionProvider",
        "cann": "CANNExecutionProvider",
    }
)
# What to install for a device, where ONNX Runtime's usual build lacks it.
INSTALL: Mapping[str, str] = MappingProxyType(
    {
        CUDA: "pip install onnxruntime-gpu (instead of onnxruntime), and CUDA with cuDNN",
        "tensorrt-ort": "pip install onnxruntime-gpu (instead of onnxruntime), and TensorRT",
        TENSORRT: "pip install 'swarm-mesh[tensorrt]', and a driver of NVIDIA",
        "openvino": "pip install onnxruntime-openvino (instead of onnxruntime)",
        "migraphx": "pip install onnxruntime-migraphx (instead of onnxruntime), and ROCm",
        "directml": "pip install onnxruntime-directml (instead of onnxruntime), on Windows",
        "coreml": "a machine with macOS: its build of onnxruntime has it",
        "qnn": "pip install onnxruntime-qnn (instead of onnxruntime), on Windows for Snapdragon",
        "xnnpack": "a build of onnxruntime with --use_xnnpack",
        "acl": "a build of onnxruntime with --use_acl",
        "cann": "pip install onnxruntime-cann (instead of onnxruntime), and CANN",
    }
)
# ONNX Runtime's name of a device's own memory, where its Python interface reaches it.
MEMORIES: Mapping[str, str] = MappingProxyType(
    {CUDA: "cuda", "tensorrt-ort": "cuda", "directml": "dml", "cann": "cann"}
)
DEVICES = (*(name for name in PROVIDERS), TENSORRT)
BY_ITSELF = (CUDA, CPU)


@dataclass(frozen=True)
class DeviceChoice:
    """The device of a stage. device: `auto` or one of `DEVICES`. options: for the device's library,
    by the library's own names. Raises DeviceError."""

    device: str = CPU
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device != AUTO and self.device not in DEVICES:
            raise DeviceError(
                f"device {self.device!r} is unknown: it is auto, {', '.join(DEVICES)}; "
                "`swarm doctor` tells which of them this machine has"
            )


def parse_options(text: str) -> dict[str, str]:
    """`k=v,k=v` as a mapping. Raises DeviceError."""
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise DeviceError(f"device option {part!r}: write NAME=VALUE, separated by commas")
        options[key.strip()] = value.strip()
    return options


def order_of(placement: DeviceChoice, offered: Sequence[str]) -> tuple[str, ...]:
    """The devices to try, best first; the last one is always the CPU.

    offered: the devices that the libraries of this machine have. Raises DeviceError where the
    device that was named is not among them.
    """
    if placement.device == AUTO:
        return tuple(device for device in BY_ITSELF if device == CPU or device in offered)
    if placement.device not in offered:
        raise DeviceError(
            f"device {placement.device!r} is not there; this machine offers "
            f"{', '.join(offered)}. To have it: {INSTALL.get(placement.device, 'another build')}"
        )
    if placement.device == CPU:
        return (CPU,)
    if placement.device == TENSORRT and CUDA in offered:
        return (TENSORRT, CUDA, CPU)
    return (placement.device, CPU)
