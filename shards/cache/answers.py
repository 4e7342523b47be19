"""Answers that are kept: the longest unused one goes first, and none is given beyond its age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shards.cache.part import CacheBounds

JOINED_SHARE = 0.5  # of its budget, for which a question waits for the answer to an equal one
ENTRY = 1024  # bytes that an answer takes beside its tensors


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """outputs: by name, read-only. at: when it was computed, in the clock of its keeper. weights:
    the weight version that it was computed with. told: what the run said of the question, such as
    a guard's judgement: it holds for an equal one."""

    outputs: Mapping[str, np.ndarray]
    at: float
    weights: int = 0
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return ENTRY + sum(array.nbytes for array in self.outputs.values())


def own_copy(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors in memory of their own, read-only."""
    copies = {name: np.array(array) for name, array in outputs.items()}
    for array in copies.values():
        array.flags.writeable = False
    return copies


@dataclass
class CacheCounters:
    """Since the start. hits: questions that a kept answer answered. joined: that an equal one
    answered, which was under way. passed: that were not looked up. evicted: for room. outdated:
    answers beyond their age, or of weights that serve no more."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    passed: int = 0
    evicted: int = 0
    outdated: int = 0


@dataclass
class KeptAnswers:
    """By the key of what they answer (`shards.cache.key`); `nbytes` is never above the bound."""

    bounds: CacheBounds
    counters: CacheCounters = field(default_factory=CacheCounters)
    nbytes: int = 0
    _kept: OrderedDict[bytes, KeptAnswer] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, key: bytes, now: float) -> KeptAnswer | None:
        """The answer to this question, which counts as used now; None where there is none."""
        answer = self._kept.get(key)
        if answer is not None and now - answer.at >= self.bounds.age_s:
            self._drop(key)
            self.counters.outdated += 1
            answer = None
        if answer is None:
            return None
        self._kept.move_to_end(key)
        self.counters.hits += 1
        return answer

    def keep(self, key: bytes, answer: KeptAnswer) -> None:
        """In the place of an older one; what was not used for longest makes room."""
        if answer.nbytes > self.bounds.bytes:
            return
        self._drop(key)
        self._kept[key] = answer
        self.nbytes += answer.nbytes
        while self.nbytes > self.bounds.bytes:
            self._drop(next(iter(self._kept)))
            self.counters.evicted += 1

    def clear(self) -> None:
        """None of them holds any more."""
        self.counters.outdated += len(self._kept)
        self._kept.clear()
        self.nbytes = 0

    def _drop(self, key: bytes) -> None:
        answer = self._kept.pop(key, None)
        if answer is not None:
            self.nbytes -= answer.nbytes
