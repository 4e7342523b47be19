"""Load and memory of GPUs, where a library tells; without it nothing is told, and nothing fails."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.life.gpus import Gpus


class NVMLError(Exception):
    pass


def library(**changed: Any) -> Any:
    """As nvidia-ml-py has it, of one device."""
    return SimpleNamespace(
        **{
            "NVMLError": NVMLError,
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3, total=4),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=25),
        }
        | changed
    )


def fails(*_: object) -> Any:
    raise NVMLError("no driver")


def look(monkeypatch: pytest.MonkeyPatch, module: Any, device: str = "cuda") -> Any:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return Gpus(lambda: {device}).look()


def test_load_and_memory_of_each_device_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{"gpu": 0, "used": 3, "total": 4, "load": 0.25}]
    assert look(monkeypatch, library()) == told


def test_a_part_of_a_device_that_tells_no_load_tells_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = library(nvmlDeviceGetUtilizationRates=fails)
    assert look(monkeypatch, part) == [{"gpu": 0, "used": 3, "total": 4}]


@pytest.mark.parametrize(
    "module", [None, library(nvmlInit=fails), library(nvmlDeviceGetCount=fails)]
)
def test_without_a_library_or_a_driver_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    assert look(monkeypatch, module) == []


def test_a_node_that_computes_on_the_cpu_asks_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, library(nvmlInit=fails), "cpu") == []
