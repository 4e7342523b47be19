"""How stage 1 learns an answer that a later stage has computed: its hop names a subject of its node
alone, the last stage takes that out of the hops, and sends a copy of the answer there.

A stage that cannot compute the request says so there, too. Where no word comes, the answer is not
kept, and nothing else happens.
"""

from __future__ import annotations

import logging

import numpy as np

from nodes.cache.around import AroundRuns
from nodes.stage.jobs import Job
from swarm.errors import Status, SwarmError
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.wire.messages import Features, Result, result_parts

log = logging.getLogger("swarm.cache")

COPY_TO = "copy_to"  # of a hop


class TellingRuns(AroundRuns):
    """Of a stage behind the first one."""

    def __init__(self, link: Link, info: ModelInfo, stage: int, *made: object) -> None:
        super().__init__(*made)  # type: ignore[arg-type]
        self._link = link
        self._is_last = stage == info.last

    def computed(
        self, job: Job, outputs: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        if not self._is_last:
            super().computed(job, outputs, seconds, batch, weights)
            return
        to = take_out(job.features)
        tells = bool(to) and job.delivery.intact()
        super().computed(job, outputs, seconds, batch, weights)
        if tells:
            self._tell(to, job.features, outputs)

    def stayed_behind(self, job: Job, weights: int) -> None:
        to = take_out(job.features)
        super().stayed_behind(job, weights)
        self._tell(to, job.features)

    def not_computed(self, job: Job, status: Status, reason: str, retry_after: float = 0.0) -> None:
        to = take_out(job.features)
        super().not_computed(job, status, reason, retry_after)
        self._tell(to, job.features)

    def _tell(
        self, to: str, features: Features, outputs: dict[str, np.ndarray] | None = None
    ) -> None:
        """outputs: None where the request has failed."""
        if not to:
            return
        result = Result(features.id, features.model, features.version)
        try:
            if outputs is not None:
                result.outputs = outputs
                self._link.publish(to, result_parts(result, features.all_hops))
                return
        except SwarmError as error:  # as a rule, it is larger than the server's messages
            log.debug("the copy of an answer was not sent: %s", error)
        result.status, result.outputs = Status.UNAVAILABLE, {}
        try:
            self._link.publish(to, result_parts(result, []))
        except SwarmError as error:
            log.debug("the end of a request was not told: %s", error)


def take_out(features: Features) -> str:
    """The subject that a copy of the answer goes to, "" for none. Who asked does not see it."""
    if features.packed_hops and COPY_TO.encode() in features.packed_hops:
        features.hops, features.packed_hops = features.all_hops, b""
    found = ""
    for place, hop in enumerate(features.hops):
        if COPY_TO in hop:
            rest = dict(hop)
            found = str(rest.pop(COPY_TO))
            features.hops[place] = rest
    return found
