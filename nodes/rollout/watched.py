"""What the rollouts of a mesh do, one line each, heard as any requester hears it.

Nothing is reported to the judges: who only looks is no requester.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from swarm.errors import DecodeError, SwarmError
from swarm.link import Link, LinkMessage
from swarm.models.registry import Registry
from swarm.rollout import RolloutPlan, Statement, share_of
from swarm.rollout.followed import FollowedRollout
from swarm.rollout.subjects import RolloutSubjects, judge_of
from swarm.routing import BadDesiredState
from swarm.subjects import Subjects

log = logging.getLogger("swarm.top")

READ_EVERY = 3.0  # seconds
MOST_READ = 16  # models


def rollout_line(followed: FollowedRollout, now: float) -> str:
    """How far a rollout is, for people."""
    progress, plan = followed.advance(now), followed.plan
    if followed.reason:
        return f"{plan.version} was rolled back: {followed.reason}"
    if progress.done:
        return f"{plan.version} is rolled out"
    if progress.step < 0:
        return f"{plan.version} rolls out as soon as judges and nodes of it are heard"
    step = f"step {progress.step + 1} of {plan.last_step + 1}"
    return f"{plan.version} rolls out: {share_of(plan, progress):g} %, {step}"


class RolloutWatch:
    """`run()` reads until it is cancelled. models(): names of the models to look for."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        registry: Registry,
        models: Callable[[], Iterable[str]],
    ) -> None:
        self._link = link
        self._subjects = RolloutSubjects.of(subjects)
        self._registry = registry
        self._models = models
        self._followed: dict[str, FollowedRollout] = {}
        self._sids: dict[str, int] = {}

    def lines(self, now: float) -> dict[str, str]:
        """A line for each model with a rollout; now: of `time.monotonic`."""
        return {model: rollout_line(each, now) for model, each in self._followed.items()}

    async def run(self) -> None:
        while True:
            if self._link.connected:
                for model in list(self._models())[:MOST_READ]:
                    try:
                        await self._read(model)
                    except (SwarmError, BadDesiredState) as error:
                        log.debug("the rollout of %s is not known: %s", model, error)
            await asyncio.sleep(READ_EVERY)

    async def _read(self, model: str) -> None:
        present = await self._registry.in_force(model)
        plan = None if present is None else present.state.rollout
        if present is None or not isinstance(plan, RolloutPlan):
            self._followed.pop(model, None)
            if model in self._sids:
                self._link.unsubscribe(self._sids.pop(model))
            return
        followed = self._followed.get(model)
        if followed is None or followed.plan.id != plan.id:
            now = time.monotonic()
            followed = FollowedRollout(plan, present.version, present.age, now)
            self._followed[model] = followed
        subject = self._subjects.guards_all(model)
        if model not in self._sids and self._link.grants.may_subscribe(subject):
            self._sids[model] = self._link.subscribe(subject, partial(self._stated, model))
        if present.aborted:
            followed.abort(present.aborted)

    def _stated(self, model: str, message: LinkMessage) -> None:
        followed = self._followed.get(model)
        if followed is not None:
            with contextlib.suppress(DecodeError):  # a foreign message says nothing
                statement = Statement.decode(message.data)
                if statement.judge == judge_of(message.subject, message.headers):
                    followed.heard(statement, time.monotonic())
