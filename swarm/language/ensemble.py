"""Two models answer as one: the next token is the one whose mean probability is the largest. Pure.

Only the likeliest tokens of each model are known, and they decide as a rule: see `likeliest`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import InvalidArgument
from swarm.language.request import MOST_ALTERNATIVES, GenerateRequest

Ranked = Sequence[tuple[int, float]]  # ids and natural log probabilities, the likeliest first


@dataclass(frozen=True, slots=True)
class Ensemble:
    """other: the second model, `NAME` or `NAME@VERSION`, of the same tokenizer. alternatives: of
    each model so many likeliest tokens are asked for, and more where they do not decide. patience:
    seconds for a model's next token; the other one goes on alone behind them. Raises
    `InvalidArgument`."""

    other: str
    alternatives: int = 32
    patience: float = 10.0

    def __post_init__(self) -> None:
        if not self.other:
            raise InvalidArgument("ensemble: the name of a second model")
        if not 1 <= self.alternatives <= MOST_ALTERNATIVES:
            raise InvalidArgument(f"ensemble: 1 to {MOST_ALTERNATIVES} alternatives")
        if not self.patience > 0:
            raise InvalidArgument("ensemble: patience above 0")

    def check(self, request: GenerateRequest) -> None:
        """Raises `InvalidArgument` for what an ensemble cannot do."""
        sampling = request.sampling
        if sampling.temperature or sampling.repetition_penalty != 1.0 or request.recommended:
            raise InvalidArgument(
                "ensemble: its tokens are the likeliest ones: give no temperature above 0, no "
                "repetition_penalty, and take none as recommended"
            )
        if request.schema or sampling.alternatives is not None:
            raise InvalidArgument("ensemble: it follows no schema, and tells no logprobs")


def likeliest(lists: tuple[Ranked, Ranked], asked: int) -> int | None:
    """The token whose mean probability over two models is the largest, of equals the lowest id;
    None where the lists do not decide. lists: of each model its `asked` likeliest tokens, or all.

    A token that a list lacks is at most as likely as the list's last one. So each token's mean lies
    between two bounds, and one is certain once its lower bound is above all others' upper bounds
    (Fagin, Lotem, Naor: Optimal aggregation algorithms for middleware, 2003: NRA).
    """
    known = [{token: math.exp(log) for token, log in ranked} for ranked in lists]
    most = [math.exp(ranked[-1][1]) if len(ranked) >= asked and ranked else 0.0 for ranked in lists]
    least = {token: sum(each.get(token, 0.0) for each in known) for each in known for token in each}
    if not least:
        return None
    best = min(least, key=lambda token: (-least[token], token))
    for token in least.keys() - {best}:
        lacks = sum(0.0 if token in each else m for each, m in zip(known, most, strict=True))
        if lacks and least[token] + lacks >= least[best]:
            return None
    # A token that both lists lack.
    return best if sum(most) < least[best] else None
