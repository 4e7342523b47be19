"""A small whole model that guesses the next ids of the one session under way, in its own thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import replace

import numpy as np

from nodes.stage.worker import Worker
from shards.language.kv_stage import KvStage
from swarm.language.effects import Guessing
from swarm.language.sampling import choose

log = logging.getLogger("swarm.language")

CHUNK = 64  # tokens of a prompt that it reads in one run


class DraftModel:
    """stages: of a whole model, in order, with one slot each: nothing is guessed beside other
    sessions. vocabulary: ids below it are guessed, and read.

    It draws as the session does, by the same seed and position, and so often draws the same. Keys
    and values are by position: what turned out to be wrong is written over.
    """

    def __init__(self, stages: Sequence[KvStage], vocabulary: int) -> None:
        self._stages, self._vocabulary = stages, vocabulary
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(self._loop, "drafts")
        self._session = ""
        self._held: list[int] = []  # ids whose keys and values are in the slot

    def ask(self, asked: Guessing, done: Callable[[Guessing, Sequence[int]], None]) -> None:
        """Guess beside the event loop; `done` is called on it, with no ids where nothing is
        known."""

        def answered(ids: Sequence[int] | None, error: Exception | None, _: float) -> None:
            if error is not None:
                log.error("the draft model failed: %s", error)
            done(asked, ids or ())

        self._session = asked.session
        self._worker.submit(lambda: self._guess(asked), answered)

    def keep_only(self, sessions: Container[str]) -> None:
        """The slot is free where its session is none of these."""
        if self._session and self._session not in sessions and not self._worker.queued:
            self._session, self._held = "", []

    def close(self) -> None:
        """Free the thread and the model. Blocks for the present run."""
        self._worker.close()
        for stage in self._stages:
            stage.close()

    def _guess(self, asked: Guessing) -> list[int]:
        """In the thread."""
        ids, first = list(asked.ids), self._stages[0]
        if len(ids) > first.context or max(ids) >= self._vocabulary:
            return []
        most = min(asked.most, first.context - len(ids))
        sampling = replace(asked.sampling, alternatives=None)
        known = _alike(self._held, ids[:-1])
        logits = self._feed(ids, known)
        for _ in range(most):
            ids.append(choose(logits, sampling, ids).token)
            if len(ids) < len(asked.ids) + most:
                logits = self._feed(ids, len(ids) - 1)
        return ids[len(asked.ids) :]

    def _feed(self, ids: Sequence[int], start: int) -> np.ndarray:
        """The logits behind the last of the ids, of which those before `start` are held."""
        logits = np.empty(0, np.float32)
        del self._held[start:]
        for at in range(start, len(ids), CHUNK):
            chunk = ids[at : at + CHUNK]
            rows = np.array([chunk], np.int64)
            for stage in self._stages:
                rows = stage.run(rows, 0, np.array([at]))
            self._held += chunk
            logits = rows[0][: self._vocabulary]
        return logits


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
