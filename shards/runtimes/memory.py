"""Whether a stage fits into this machine's memory, known before it is loaded."""

from __future__ import annotations

from pathlib import Path

from shards.errors import DoesNotFit

# Bytes in memory for each byte of the model's file, at the highest moment of loading: the file, the
# parsed graph, the optimised graph and the weights in the layout of runs (a ResNet-50 of 102 MB
# takes 372 MB).
LOADING = 3.7
# Bytes that a session takes without weights.
SESSION = 8 << 20
MEMINFO = Path("/proc/meminfo")
CGROUPS = (  # limit and use of this process's group: version 2, version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def need_of(file_bytes: int) -> int:
    """The bytes of memory that loading a model of this size takes at its highest moment."""
    return SESSION + int(file_bytes * LOADING)


def free_bytes() -> int | None:
    """The bytes that this process may still take; None where the system does not tell.

    The least of the machine's available memory and of what the limit of this process's control
    group leaves.
    """
    known = [_available(), *(_left(limit, use) for limit, use in CGROUPS)]
    return min((value for value in known if value is not None), default=None)


def check_fits(what: str, file_bytes: int, have: int | None) -> None:
    """Raises DoesNotFit where `what` needs more memory than there is. have: None if unknown."""
    need = need_of(file_bytes)
    if have is not None and need > have:
        raise DoesNotFit(
            f"RESOURCE_EXHAUSTED: {what} needs {_size(need)} to load, this machine has "
            f"{_size(have)} free: cut the model into more stages, or quantize it "
            "(`swarm model quantize`)"
        )


def _available() -> int | None:
    try:
        for line in MEMINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _left(limit: Path, use: Path) -> int | None:
    """Bytes below a control group's limit; None where there is none (`max`)."""
    try:
        return max(0, int(limit.read_text(encoding="utf-8")) - int(use.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
