"""The answers that the demo has seen, and the figures that follow from them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nodes.console import err
from swarm.link import LinkMessage

TOLERANCE = 1e-4  # relative: ONNX Runtime optimises the shards and the whole model apart


@dataclass
class TakeoverRecord:
    """How the nodes of stage 2 changed. old_node: who was killed. Moments are `time.monotonic()`,
    0 where they have not come."""

    old_node: str = ""
    killed_at: float = 0.0
    restarted_at: float = 0.0
    taken_over_at: float = 0.0
    returned_at: float = 0.0

    def killed(self, node: str) -> None:
        """The node of shard-2 is killed now."""
        self.old_node, self.killed_at = node, time.monotonic()

    def restarted(self) -> None:
        """Shard-2 starts again now."""
        self.restarted_at = time.monotonic()

    def answered(self, hops: Iterable[dict[str, Any]], now: float) -> str:
        """An answer came by these hops; returns what it shows for the first time, or ""."""
        node = next((hop["node"] for hop in hops if hop["stage"] == 2), "")
        if self.killed_at and not self.taken_over_at and node.startswith("fallback"):
            self.taken_over_at = now
            return f"{node} took over stage 2"
        back = node.startswith("shard-2") and node != self.old_node
        if self.restarted_at and not self.returned_at and back:
            self.returned_at = now
            return f"{node} has its stage back"
        return ""

    @property
    def complete(self) -> bool:
        return bool(self.taken_over_at and self.returned_at)

    def figures(self) -> dict[str, float | None]:
        """Milliseconds; None for what did not come to pass."""
        return {
            "takeover_ms": _between(self.killed_at, self.taken_over_at),
            "return_ms": _between(self.restarted_at, self.returned_at),
        }


@dataclass
class DemoRecord:
    """expected: the whole model's logits for each image, FP32 [n, 10]; labels: digits [n].

    aloud: whether steps of the story are printed.
    """

    expected: np.ndarray
    labels: np.ndarray
    aloud: bool = False
    seen: set[int] = field(default_factory=set)
    latencies: list[float] = field(default_factory=list)  # ms
    overheads: list[float] = field(default_factory=list)  # ms per hop
    arrivals: list[float] = field(default_factory=list)
    right: int = 0
    wrong: int = 0
    failed: int = 0
    twice: int = 0
    degraded: int = 0
    takeover: TakeoverRecord = field(default_factory=TakeoverRecord)
    last: str = ""
    story: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.seen)

    def say(self, text: str) -> None:
        """A step of the story."""
        self.story.append(text)
        if self.aloud:
            err.print(f"demo: {text}")

    def take(self, message: LinkMessage) -> None:
        """Count one line of the edge's sink: the answer to one image."""
        now = time.monotonic()
        line = json.loads(bytes(message.data))
        sequence = int(line["sequence"])
        if line["status"] != "OK":
            self.failed += 1
            self.story.append(f"image {sequence}: {line['status']}: {line.get('error', '')}")
            return
        if sequence in self.seen:
            self.twice += 1
            return
        self.seen.add(sequence)
        self.arrivals.append(now)
        self._check(sequence, np.asarray(line["outputs"]["logits"], np.float32)[0])
        self._time(line, now)
        self.degraded += line["degraded"]

    def _check(self, sequence: int, logits: np.ndarray) -> None:
        index = sequence % len(self.expected)
        expected = self.expected[index]
        if np.abs(logits - expected).max() > TOLERANCE * np.abs(expected).max():
            self.wrong += 1
        digit = int(logits.argmax())
        self.right += digit == self.labels[index]
        self.last = f"image {sequence}: it is a {digit} (label {self.labels[index]})"

    def _time(self, line: dict[str, Any], now: float) -> None:
        hops = line["hops"]
        self.latencies.append(line["latency_ms"])
        compute = sum(hop["compute_us"] for hop in hops) / 1e3
        self.overheads.append((line["latency_ms"] - compute) / max(1, len(hops)))
        if told := self.takeover.answered(hops, now):
            self.story.append(told)


def percentile(values: Sequence[float], q: float) -> float:
    """The percentile q, 0 to 100, rounded for a report; 0 of no value."""
    return round(float(np.percentile(values, q)), 3) if values else 0.0


def summarise(record: DemoRecord, count: int) -> dict[str, Any]:
    """The figures that the demo ends with; times in milliseconds. count: captured images."""
    after = [t for t in record.arrivals if record.takeover.killed_at]
    gaps = np.diff(np.array(after)) * 1e3 if len(after) > 1 else np.zeros(1)
    return {
        "requests": count,
        "answered": record.answered,
        "lost": count - record.answered,
        "wrong": record.wrong,
        "degraded": record.degraded,
        "answered_twice": record.twice,
        "accuracy": round(record.right / max(1, record.answered), 4),
        "latency_p50_ms": percentile(record.latencies, 50),
        "latency_p99_ms": percentile(record.latencies, 99),
        "latency_max_ms": percentile(record.latencies, 100),
        "overhead_per_hop_p50_ms": percentile(record.overheads, 50),
        "overhead_per_hop_p99_ms": percentile(record.overheads, 99),
        "longest_gap_ms": round(float(gaps.max()), 1),
    } | record.takeover.figures()


def _between(start: float, end: float) -> float | None:
    """Milliseconds between two moments, or None where one of them did not come."""
    return round((end - start) * 1e3, 1) if start and end else None
