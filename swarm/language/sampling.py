"""How the next token is chosen. Pure, and a function of (logits, ids, seed, position) alone: the
same in any batch, on any node, and when it is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from swarm.language.request import Sampling


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token, its natural log probability before temperature and cuts, and the likeliest tokens
    with theirs; None and nothing where they were not asked for."""

    token: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


# Below it a draw is the likeliest token, and scores divided by it may leave the range of a double.
COLDEST = 1e-100


def choose(
    logits: np.ndarray,
    sampling: Sampling,
    ids: Sequence[int],
    allowed: np.ndarray | None = None,
) -> Chosen:
    """The token behind `ids`. logits: [vocabulary], float32. allowed: ids that may follow,
    ascending, one at least; None for all. Log probabilities are those of all ids."""
    scores = logits.astype(np.float64)
    if sampling.repetition_penalty != 1.0 and len(ids):
        scores = _penalized(scores, ids, sampling.repetition_penalty)
    among = scores if allowed is None else scores[allowed]
    if sampling.temperature < COLDEST:
        token = int(np.argmax(among))
    else:
        token = _drawn(among / sampling.temperature, sampling, len(ids))
    if allowed is not None:
        token = int(allowed[token])
    if sampling.alternatives is None:
        return Chosen(token)
    logs = scores - _log_sum(scores)
    best = _likeliest(scores, sampling.alternatives)
    return Chosen(token, float(logs[token]), tuple((int(one), float(logs[one])) for one in best))


def uniform(seed: int, position: int) -> float:
    """A point in [0, 1) that belongs to a seed and a position: the same on every machine."""
    text = f"{seed}/{position}".encode()
    return (int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 11) * 2.0**-53


def _penalized(scores: np.ndarray, ids: Sequence[int], penalty: float) -> np.ndarray:
    seen = np.unique(np.asarray(ids, np.int64))
    seen = seen[seen < len(scores)]
    values = scores[seen]
    scores[seen] = np.where(values > 0, values / penalty, values * penalty)
    return scores


def _drawn(scores: np.ndarray, sampling: Sampling, position: int) -> int:
    if 0 < sampling.top_k < len(scores):
        order = _likeliest(scores, sampling.top_k)
    else:
        order = np.argsort(-scores, kind="stable")  # of equals the lowest index comes first
    weights = np.exp(scores[order] - scores[order[0]])
    sums = np.cumsum(weights)
    if sampling.top_p < 1.0:  # the shortest beginning whose share is at least top_p
        end = int(np.searchsorted(sums, sampling.top_p * sums[-1])) + 1
        sums = sums[:end]
    at = int(np.searchsorted(sums, uniform(sampling.seed, position) * sums[-1], side="right"))
    return int(order[min(at, len(sums) - 1)])


def _likeliest(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` highest scores, the highest first; of equals the lowest index."""
    count = min(count, len(scores))
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    among = np.flatnonzero(scores >= least)
    return among[np.lexsort((among, -scores[among]))][:count]


def _log_sum(scores: np.ndarray) -> float:
    top = float(scores.max())
    return top + float(np.log(np.exp(scores - top).sum()))
