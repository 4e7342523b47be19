"""What the demo saw, and how it is shown."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from nodes.cli.status import new_table, status_row
from swarm.link import LinkMessage

TOLERANCE = 1e-4  # relative; the shards and the whole are optimised apart (see README)


@dataclass
class DemoState:
    """expected: the whole model's logits, [n, 10]; labels: [n]. Times: `time.monotonic()`."""

    expected: np.ndarray
    labels: np.ndarray
    seen: set[int] = field(default_factory=set)
    latencies: list[float] = field(default_factory=list)  # ms
    overheads: list[float] = field(default_factory=list)  # ms per hop
    arrivals: list[float] = field(default_factory=list)
    right: int = 0
    wrong: int = 0
    failed: int = 0
    twice: int = 0
    degraded: int = 0
    killed_at: float = 0.0
    restarted_at: float = 0.0
    taken_over_at: float = 0.0
    returned_at: float = 0.0
    old_node: str = ""
    last: str = ""
    story: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return len(self.seen)

    def take(self, message: LinkMessage) -> None:
        """One line of the edge's sink."""
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
        node = next((hop["node"] for hop in hops if hop["stage"] == 2), "")
        if self.killed_at and not self.taken_over_at and node.startswith("fallback"):
            self.taken_over_at = now
            self.story.append(f"{node} took over stage 2")
        back = node.startswith("shard-2") and node != self.old_node
        if self.restarted_at and not self.returned_at and back:
            self.returned_at = now
            self.story.append(f"{node} has its stage back")


def summarise(state: DemoState, count: int) -> dict[str, Any]:
    """The figures that the demo ends with; times in milliseconds."""

    def percentile(values: list[float], q: float) -> float:
        return round(float(np.percentile(values, q)), 3) if values else 0.0

    after = [t for t in state.arrivals if state.killed_at]
    gaps = np.diff(np.array(after)) * 1e3 if len(after) > 1 else np.zeros(1)
    return {
        "requests": count,
        "answered": state.answered,
        "lost": count - state.answered,
        "wrong": state.wrong,
        "degraded": state.degraded,
        "answered_twice": state.twice,
        "accuracy": round(state.right / max(1, state.answered), 4),
        "latency_p50_ms": percentile(state.latencies, 50),
        "latency_p99_ms": percentile(state.latencies, 99),
        "latency_max_ms": percentile(state.latencies, 100),
        "overhead_per_hop_p50_ms": percentile(state.overheads, 50),
        "overhead_per_hop_p99_ms": percentile(state.overheads, 99),
        "takeover_ms": _between(state.killed_at, state.taken_over_at),
        "longest_gap_ms": round(float(gaps.max()), 1),
        "return_ms": _between(state.restarted_at, state.returned_at),
    }


def _between(start: float, end: float) -> float | None:
    """Milliseconds, or None when it did not happen."""
    return round((end - start) * 1e3, 1) if start and end else None


def view(state: DemoState, statuses: dict[str, dict[str, Any]], part: float) -> Group:
    """The live picture."""
    table = new_table()
    for status in sorted(statuses.values(), key=lambda s: (s["role"], s["since"])):
        dead = status["node"] == state.old_node and state.killed_at > 0
        row = status_row(status)
        if dead:
            row[2] = "[red]killed[/]"
        table.add_row(*row)
    doc = summarise(state, state.answered)
    line = (
        f"{state.answered} answered · {state.wrong} wrong · accuracy {doc['accuracy']:.3f} · "
        f"p50 {doc['latency_p50_ms']:.2f} ms · p99 {doc['latency_p99_ms']:.2f} ms"
    )
    bar = ProgressBar(total=1.0, completed=min(1.0, part), width=60)
    story = Text("\n".join(state.story[-6:]), style="yellow")
    return Group(table, bar, Text(line, style="bold"), Text(state.last), story)
