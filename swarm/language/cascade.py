"""A small model answers first, and a large one in its place where it is unsure: the rule. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import InvalidArgument

MOST_HELD = 1024  # tokens that may be held back


@dataclass(frozen=True, slots=True)
class Cascade:
    """large: the model that is asked where the small one is unsure, `NAME` or `NAME@VERSION`. The
    small one is unsure where the natural log probabilities of its first `tokens` tokens are `below`
    this, by their mean or by the least of them (`by`). patience: seconds for the large one's first
    token; the small one's answer goes on behind them. Raises `InvalidArgument`."""

    large: str
    below: float = -1.0
    tokens: int = 8
    by: str = "mean"
    patience: float = 10.0

    def __post_init__(self) -> None:
        if not self.large:
            raise InvalidArgument("cascade: the name of a larger model")
        if not 1 <= self.tokens <= MOST_HELD:
            raise InvalidArgument(f"cascade: it is decided behind 1 to {MOST_HELD} tokens")
        if self.by not in ("mean", "least"):
            raise InvalidArgument("cascade: by mean or by least")
        if not (self.patience > 0 and self.below <= 0):
            raise InvalidArgument("cascade: patience above 0, and a log probability of 0 at most")

    def is_unsure(self, logs: Sequence[float]) -> bool:
        """Whether the large model is to answer. logs: of the small one's first tokens."""
        if not logs:
            return True
        found = min(logs) if self.by == "least" else sum(logs) / len(logs)
        return found < self.below
