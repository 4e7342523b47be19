"""What the learning demo has measured, and whether it reached its targets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nodes.demo.record import percentile
from nodes.learning.references import References

# Against central training of the same samples.
MEAN_BELOW, WORST_BELOW, ATTACKED_BELOW = 0.01, 0.03, 0.02
MOST_BYTES = 0.25  # share of full gossip's
SERVED_OVER = 100  # answers that the served accuracy is taken over
SERVED_RISE = 0.3  # of accuracy, that the served one has to gain


@dataclass
class LearnRecord:
    """Times are seconds since `began`. nodes: (time, accuracy) of each learner; served: (time,
    accuracy of the last answers, weight version)."""

    began: float = field(default_factory=time.monotonic)
    nodes: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    served: list[tuple[float, float, int]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  # ms
    asked: int = 0
    refused: int = 0  # by an overloaded mesh, and asked again
    failures: list[str] = field(default_factory=list)
    story: list[tuple[float, str]] = field(default_factory=list)
    bytes_sent: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    doubted: dict[str, set[str]] = field(default_factory=dict)  # by sender: who doubts or blocks it
    references: References | None = None
    dense_bytes: int = 0  # of one message of full gossip
    before_attack: dict[str, float] = field(default_factory=dict)
    at_end: dict[str, float] = field(default_factory=dict)
    _right: deque[bool] = field(default_factory=lambda: deque(maxlen=SERVED_OVER))

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        """Something happened that people want to read."""
        self.story.append((self.now, text))

    def tested(self, node: str, accuracy: float) -> None:
        """A learner's accuracy on images that nobody trains on."""
        self.nodes.setdefault(node, []).append((self.now, accuracy))

    def answered(self, right: bool, latency: float, weights: int) -> None:
        """The pipeline answered. latency: seconds."""
        self._right.append(right)
        self.latencies.append(latency * 1e3)
        if len(self._right) == SERVED_OVER and self.asked % (SERVED_OVER // 4) == 0:
            self.served.append((self.now, float(np.mean(self._right)), weights))

    def learned(self, node: str, learning: dict[str, Any]) -> None:
        """A learner's status came."""
        exchange = learning.get("exchange", {})
        # A process counts from its own start: the largest figure seen is the last one.
        self.bytes_sent[node] = max(
            self.bytes_sent.get(node, 0), int(exchange.get("sent_bytes", 0))
        )
        self.rounds[node] = max(self.rounds.get(node, 0), int(learning.get("rounds", 0)))

    @property
    def gossip_bytes(self) -> int:
        """What full gossip would have sent in the same rounds: the whole head each time."""
        return self.dense_bytes * sum(self.rounds.values())


def figures(record: LearnRecord) -> dict[str, Any]:
    """The document that the demo ends with; times in milliseconds, accuracies 0 to 1."""
    references = record.references
    assert references is not None
    end, before = record.at_end, record.before_attack
    sent = sum(record.bytes_sent.values())
    served = [accuracy for _, accuracy, _ in record.served]
    return {
        "accuracy": {
            "mean": _mean(list(end.values())),
            "worst": _worst(list(end.values())),
            "mean_before_attack": _mean(list(before.values())),
            "worst_before_attack": _worst(list(before.values())),
            "nodes": {name: round(value, 4) for name, value in sorted(end.items())},
        },
        "references": {
            "central": round(references.central, 4),
            "full_gossip_mean": _mean(references.gossip),
            "full_gossip_worst": _worst(references.gossip),
            "alone_mean": _mean(references.alone),
            "alone_best": round(max(references.alone), 4),
        },
        "bytes": {
            "sent": sent,
            "full_gossip": record.gossip_bytes,
            "share": round(sent / max(1, record.gossip_bytes), 4),
            "rounds": sum(record.rounds.values()),
        },
        "served": {
            "asked": record.asked,
            "answered": len(record.latencies),
            "lost": record.asked - len(record.latencies),
            "refused_and_asked_again": record.refused,
            "accuracy_first": round(served[0], 4) if served else 0.0,
            "accuracy_last": round(served[-1], 4) if served else 0.0,
            "weights": record.served[-1][2] if record.served else 0,
            "latency_p50_ms": percentile(record.latencies, 50),
            "latency_p99_ms": percentile(record.latencies, 99),
        },
        "attackers": {name: sorted(by) for name, by in sorted(record.doubted.items())},
        "failures": record.failures[:10],
    }


def missed(doc: dict[str, Any]) -> list[str]:
    """The targets that a run missed, as sentences; empty where it reached all."""
    accuracy, central = doc["accuracy"], doc["references"]["central"]
    served, share = doc["served"], doc["bytes"]["share"]
    wanted = [
        (
            accuracy["mean_before_attack"] >= central - MEAN_BELOW,
            f"the nodes' mean accuracy {accuracy['mean_before_attack']} is more than {MEAN_BELOW} "
            f"below central training's {central}",
        ),
        (
            accuracy["worst_before_attack"] >= central - WORST_BELOW,
            f"the worst node's accuracy {accuracy['worst_before_attack']} is more than "
            f"{WORST_BELOW} below central training's {central}",
        ),
        (
            accuracy["worst"] >= central - ATTACKED_BELOW,
            f"under attack the worst honest node has {accuracy['worst']}, more than "
            f"{ATTACKED_BELOW} below central training's {central}",
        ),
        (share <= MOST_BYTES, f"{share:.0%} of full gossip's bytes were sent"),
        (served["lost"] == 0, f"{served['lost']} of {served['asked']} requests were lost"),
        (
            served["accuracy_last"] >= served["accuracy_first"] + SERVED_RISE,
            f"the served accuracy went from {served['accuracy_first']} to "
            f"{served['accuracy_last']} only",
        ),
    ]
    return [sentence for reached, sentence in wanted if not reached]


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4) if values else 0.0


def _worst(values: Sequence[float]) -> float:
    return round(min(values), 4) if values else 0.0
