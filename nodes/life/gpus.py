"""Load and memory of NVIDIA devices, where `nvidia-ml-py` is installed (extra `gpu`)."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("swarm.node")

ON_NVIDIA = frozenset({"cuda", "tensorrt", "tensorrt-ort"})
MOST_GPUS = 16


class Gpus:
    """`look()` tells of each device, as far as a library does. computes_on(): the devices of the
    node's stages; where none of them is an NVIDIA device, no library is loaded."""

    def __init__(self, computes_on: Callable[[], set[str]]) -> None:
        self._computes_on = computes_on
        self._library: Any = None
        self._is_absent = False

    def look(self) -> list[dict[str, Any]]:
        """load: share of the last moments in which the device computed, 0 to 1. used, total: bytes
        of its memory."""
        if self._is_absent or not self._computes_on() & ON_NVIDIA:
            return []
        try:
            if self._library is None:
                self._library = _library()
            return [_of(self._library, index) for index in _indices(self._library)]
        except ModuleNotFoundError:
            self._is_absent = True
        except Exception as error:  # NVML's own errors, of a driver that is not there or that ends
            log.info("the load of this machine's GPUs is not known: %s", error)
            self._is_absent = True
        return []


def _library() -> Any:
    """NVML, ready. Raises `ModuleNotFoundError`, and its own errors."""
    nvml = importlib.import_module("pynvml")  # an extra that most nodes do not have
    nvml.nvmlInit()
    return nvml


def _indices(nvml: Any) -> range:
    return range(min(MOST_GPUS, int(nvml.nvmlDeviceGetCount())))


def _of(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    told = {"gpu": index, "used": int(memory.used), "total": int(memory.total)}
    with contextlib.suppress(nvml.NVMLError):  # a part of a device (MIG) tells no load
        told["load"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return told
