"""The machine that a result was measured on, as far as the figures depend on it."""

from __future__ import annotations

import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """System, CPU model, usable cores, Python version and load average, for a result's document."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "load_average": None if load is None else list(load),
    }


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # no Linux: `platform` knows the name
    return platform.processor() or platform.machine()
