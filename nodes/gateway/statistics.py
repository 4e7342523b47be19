"""What one gateway has answered, by model version, in the words of Triton's statistics."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from swarm.errors import Status
from swarm.wire.messages import Result

MOST_VERSIONS = 1024  # of all models; later ones are not counted


@dataclass(slots=True)
class Times:
    """A number of requests, and the nanoseconds that they took together."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """One request more."""
        self.count += 1
        self.ns += round(seconds * 1e9)


@dataclass(slots=True)
class _Version:
    last: int = 0  # milliseconds since 1970
    success: Times = field(default_factory=Times)
    fail: Times = field(default_factory=Times)
    queue: Times = field(default_factory=Times)
    compute: Times = field(default_factory=Times)


class Statistics:
    """`add` counts, `documents` tells. Of the mesh's answers to clients of this gateway alone."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str], _Version] = {}
        self._answered: dict[str, str] = {}  # the version that answered last, by model

    def add(self, model: str, result: Result, version: str = "") -> None:
        """A request was answered. version: that it asked for, for a result that names none; without
        either, the one that answered last."""
        version = result.version or version or self._answered.get(model, "")
        if result.status is Status.NOT_FOUND or not version:
            return
        key = model, version
        counted = self._versions.get(key)
        if counted is None:
            if len(self._versions) >= MOST_VERSIONS:
                return
            counted = self._versions[key] = _Version()
        if result.status is not Status.OK:
            counted.fail.add(result.latency)
            return
        self._answered[model] = version
        counted.last = round(time.time() * 1e3)
        counted.success.add(result.latency)
        # Nodes say it, by clocks that may have been set.
        queued = sum(max(0, hop.queue_us) for hop in result.hops) / 1e6
        counted.queue.add(min(queued, result.latency))
        counted.compute.add(result.compute)

    def documents(self, model: str = "", version: str = "") -> list[dict[str, Any]]:
        """The entries of `model_stats`. model, version: "" for all."""
        return [
            _document(name, number, counted)
            for (name, number), counted in sorted(self._versions.items())
            if model in ("", name) and version in ("", number)
        ]


def _document(model: str, version: str, counted: _Version) -> dict[str, Any]:
    nothing = Times(counted.success.count)
    times = {
        "success": counted.success,
        "fail": counted.fail,
        "queue": counted.queue,
        "compute_input": nothing,
        "compute_infer": counted.compute,
        "compute_output": nothing,
        "cache_hit": Times(),
        "cache_miss": Times(),
    }
    return {
        "name": model,
        "version": version,
        "last_inference": counted.last,
        "inference_count": counted.success.count,
        "execution_count": counted.success.count,
        "inference_stats": {name: asdict(each) for name, each in times.items()},
        "batch_stats": [],
    }


def empty_document(model: str, version: str) -> dict[str, Any]:
    """The entry of a version that nobody has asked for."""
    return _document(model, version, _Version())
