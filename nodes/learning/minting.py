"""When a learner makes a weight version of what it knows: decisions, without a clock.

Any learner may. For each number one is preferred by rendezvous hashing, so that usually one only
tries; where it does not, the next ones do in turn, a grace later each. Who is first to replace
the ledger wins, and the others see that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from swarm.routing.rendezvous import rendezvous

LEAST_CHANGE = 1e-3  # of the length of the weights: less is no news


def rank(model: str, version: str, n: int, node: str, learners: Iterable[str]) -> int:
    """This node's place in the order of those who may mint weight version `n`, from 0 on."""
    return rendezvous(f"weights/{model}/{version}/{n}", {*learners, node}).index(node)


def is_due(since: float, every: float, grace: float, place: int) -> bool:
    """Whether a node at that place may mint. since: seconds since the ledger changed, or since
    this node began to look. every: seconds between two versions. grace: for each place."""
    return since >= every + place * grace


def is_news(present: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray]) -> bool:
    """Whether the candidate differs enough from the present weights to be worth a version."""
    moved = sum(float(np.square(candidate[name] - present[name]).sum()) for name in candidate)
    length = sum(float(np.square(value).sum()) for value in candidate.values())
    return moved > LEAST_CHANGE**2 * max(length, 1e-12)
