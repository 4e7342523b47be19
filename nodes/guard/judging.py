"""A guard at stage 1 of a version on one node: it looks at each run's tensors, in its thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from nodes.connection.events import timestamp
from nodes.guard.lately import Lately
from nodes.versions.loaded import Loading
from shards.errors import InputError
from shards.guard.part import PART
from shards.guard.reference import GuardReference
from shards.guard.told import ToldGuard
from shards.manifest import verify
from swarm.flow.recent_counts import RecentCounts
from swarm.wire.unfamiliar import MOST_NAMED, ROWS, SCORE, rows_text

log = logging.getLogger("swarm.guard")


class GuardedStage:
    """See `nodes.look.Look`."""

    def __init__(
        self, model: str, version: str, told: ToldGuard, reference: GuardReference
    ) -> None:
        self._told = told
        self._reference = reference
        self._names = {"model": model, "version": version}
        self._rows = self._unfamiliar = self._failed = 0
        self._lately, self._counted = RecentCounts(2), (0, 0)  # rows, unfamiliar ones
        self._since = ""  # when they became too many

    def looked(
        self, received: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Fields of the request's hop. Raises InputError for unfamiliar rows, where the model's
        owner refuses them. A request that cannot be judged is answered as without a guard."""
        try:
            scores = self._reference.scores({**received, **sent})
        except Exception:
            if not self._failed:
                log.exception("a request of %(model)s@%(version)s is not judged", self._names)
            self._failed += 1
            return {}
        if not len(scores):
            return {}
        far = np.flatnonzero(~(scores <= 1))
        self._rows += len(scores)
        self._unfamiliar += len(far)
        score = round(float(scores.max()), 3)
        if not len(far):
            return {SCORE: min(score, 1.0)}
        score, named = max(score, 1.001), rows_text(far[: MOST_NAMED + 1])
        if self._told.refuse:
            raise InputError(
                next(iter(received)),
                "inputs like those of the model's calibration, as its owner wants",
                f"row {named}, {score:g} times as far from them as is usual at most",
            )
        return {SCORE: score, ROWS: named}

    def status(self) -> dict[str, list[dict[str, Any]]]:
        """For status documents."""
        now, (rows, unfamiliar) = time.monotonic(), self._counted
        self._counted = self._rows, self._unfamiliar  # a run's thread counts on meanwhile
        self._lately.add(now, self._counted[0] - rows, self._counted[1] - unfamiliar)
        of_rows, of_unfamiliar = self._lately.sums(now)
        judged = Lately(of_rows, of_unfamiliar, self._told.false_alarms)
        self._since = (self._since or timestamp()) if judged.are_too_many else ""
        row = {
            **self._names,
            "rows": self._rows,
            "unfamiliar": self._unfamiliar,
            "failed": self._failed,
            "false_alarms": self._told.false_alarms,
            "recent_rows": judged.rows,
            "recent_unfamiliar": judged.unfamiliar,
            "bound": judged.bound,
        }
        return {"guards": [row | ({"since": self._since} if self._since else {})]}


async def prepare(loading: Loading) -> GuardedStage:
    """Raises `NotFound`, ManifestError, ArtifactError."""
    told = ToldGuard.of(loading.manifest.parts[PART.field])
    digest = loading.manifest.digest(told.file)

    def read() -> GuardReference:
        data = verify(loading.fetch(told.file), digest, told.file)
        return GuardReference.from_bytes(data, told.views)

    return GuardedStage(
        loading.info.model, loading.info.version, told, await asyncio.to_thread(read)
    )
