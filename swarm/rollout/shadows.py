"""Copies of requests, on which a version under rollout works beside the version that serves.

A copy is asked for when the request has its answer, and only while this process has nothing else to
ask. It is stored nowhere and asked once. Its answer is compared with the first one and thrown away.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from swarm.errors import Status
from swarm.models.trials import TriedRequest
from swarm.rollout.agreement import agree
from swarm.rollout.followed import FollowedRollout
from swarm.wire.messages import Result

log = logging.getLogger("swarm.rollout.shadows")

Answer = asyncio.Future[Result]

MOST_COPIES = 2  # under way, or waiting for the answer to compare with
BUDGET = 1.0  # seconds for a copy
# Outcomes of a copy that say something of the version; the others say that there was no room.
_COMPARED = {Status.OK, Status.INTERNAL}


async def answered(request: Awaitable[Result], compare: Answer | None) -> Result:
    """The result of a request. compare: as `Shadows.begin` gave it, for the same request."""
    if compare is None:
        return await request
    try:
        result = await request
    except BaseException:
        compare.cancel()
        raise
    if not compare.done():  # `Shadows.close` ends it
        compare.set_result(result)
    return result


class Shadows:
    """The copies of one process. dropped, compared, failed: counts since the start; failed: copies
    that a fault of this process ended, before they were compared.

    of(model): its rollout. tell(model, plan, alike): a copy was compared. under_way(): requests of
    this process that wait for their answers, copies among them.
    """

    def __init__(
        self,
        of: Callable[[str], FollowedRollout | None],
        tell: Callable[[str, str, bool], None],
        under_way: Callable[[], int],
    ) -> None:
        self._of = of
        self._tell = tell
        self._under_way = under_way
        self._tasks: set[asyncio.Task[None]] = set()
        self._rng = random.Random()
        self.dropped = 0
        self.compared = 0
        self.failed = 0

    def begin(self, tried: TriedRequest) -> Answer | None:
        """A request of the version that serves is about to be asked. Returns where its result has
        to be put, or None where it is not copied."""
        followed = self._of(tried.model)
        if followed is None or not followed.plan.shadow or tried.copy is None:
            return None
        if tried.version == followed.plan.version:
            return None
        if self._rng.random() * 100.0 >= followed.plan.shadow:
            return None
        # Before the first step some stage has no node of the new version yet.
        if followed.progress.aborted or followed.progress.step < 0:
            return None
        if len(self._tasks) >= MOST_COPIES:
            self.dropped += 1
            return None
        loop = asyncio.get_running_loop()
        result: Answer = loop.create_future()
        task = loop.create_task(self._copy(followed, tried, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return result

    async def _copy(self, followed: FollowedRollout, tried: TriedRequest, result: Answer) -> None:
        assert tried.copy is not None
        model, plan = tried.model, followed.plan
        try:
            # While the request is under way: afterwards its caller may write into its arrays.
            copies = {name: array.copy() for name, array in tried.inputs.items()}
            present = await result
            if present.status is not Status.OK or present.degraded:
                return
            if self._under_way() or self._of(model) is not followed:
                self.dropped += 1
                return
            outputs = {name: array.copy() for name, array in present.outputs.items()}
            shadow = await tried.copy(copies, plan.version, BUDGET)
            if shadow.status not in _COMPARED:
                self.dropped += 1
                return
            alike = shadow.status is Status.OK and agree(plan.agreement, outputs, shadow.outputs)
            self._tell(model, plan.id, alike)
            self.compared += 1
        except Exception as error:
            # The request has its answer, and nobody waits for its copy.
            self.failed += 1
            level = logging.WARNING if self.failed == 1 else logging.DEBUG
            log.log(level, "a copy of a request for %s was not compared: %r", model, error)

    def close(self) -> None:
        """Ask nothing more."""
        for task in self._tasks:
            task.cancel()
