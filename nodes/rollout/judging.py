"""This node as one of the judges of its model's rollout.

A few nodes judge: the first of all that serve the model, by rendezvous hashing over the plan's id.
Each adds up the requesters' reports, and states how the guards stand. The first that sees a broken
guard ends the rollout. A judge that dies is replaced as soon as gossip knows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from nodes.connection.connection import Connection
from nodes.feature import Part
from nodes.versions.versions import Versions
from swarm.errors import DecodeError, SwarmError
from swarm.link import LinkMessage
from swarm.periodic import BEAT, beat
from swarm.rollout import RolloutPlan, RolloutReport, Statement, Verdict, share_of
from swarm.rollout.followed import FollowedRollout
from swarm.rollout.judge import Judge, reason
from swarm.rollout.rollouts import abort, rollout_of
from swarm.rollout.subjects import RolloutSubjects
from swarm.routing.rendezvous import rendezvous

log = logging.getLogger("swarm.node")

JUDGES = 3
JUDGE_EVERY = 2 * BEAT  # seconds
AFTER_THE_END = 5  # of these periods pass from one statement to the next
LISTEN_FIRST = 3  # periods for which a new judge only listens


class Judging(Part):
    """`run()` judges while there is a rollout."""

    name = "rollouts"

    def __init__(self, connection: Connection, versions: Versions) -> None:
        self._mesh = connection.mesh
        self._subjects = RolloutSubjects.of(connection.mesh.subjects)
        self._model = connection.config.model_name
        self._node = connection.id
        self._tell = connection.events.tell
        self._versions = versions
        self._wake = asyncio.Event()
        self._published = ""  # the last state of the rollout that was published
        self._judge_of: tuple[str, Judge] | None = None  # a plan's id, and its last judge here

    def desired_state_was_read(self) -> None:
        """A rollout may have begun."""
        if rollout_of(self._mesh.rollouts, self._model) is not None:
            self._wake.set()

    async def run(self) -> None:
        """Judge one rollout after the other, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            followed = rollout_of(self._mesh.rollouts, self._model)
            if followed is not None and not followed.progress.aborted:
                await self._watch(followed)

    async def _watch(self, followed: FollowedRollout) -> None:
        """Judge whenever this node is one of the judges, until the rollout is aborted or gone."""
        while self._is_present(followed):
            if self._place(followed.plan) < JUDGES:
                await self._judge(followed)
            else:
                await beat(JUDGE_EVERY)

    def _is_present(self, followed: FollowedRollout) -> bool:
        present = rollout_of(self._mesh.rollouts, self._model) is followed
        return present and not followed.progress.aborted

    def _place(self, plan: RolloutPlan) -> int:
        """Of this node in the order of those that may judge."""
        nodes = {self._node}
        for serving in self._versions.all():
            for stage in serving.info.stages:
                nodes |= self._mesh.placement.serving(serving.info, stage.stage)
        return rendezvous(f"{self._model}/{plan.id}", nodes).index(self._node)

    async def _judge(self, followed: FollowedRollout) -> None:
        """Judge until this node is a judge no more."""
        judge = Judge(followed.plan, self._node)
        self._judge_of = followed.plan.id, judge
        newcomers = False

        def report(message: LinkMessage) -> None:
            nonlocal newcomers
            with contextlib.suppress(DecodeError):  # a foreign message reports nothing
                read = RolloutReport.decode(message.data)
                newcomers = judge.heard(read, time.monotonic()) or newcomers

        sid = self._mesh.link.subscribe(self._subjects.reports_all(self._model), report)
        try:
            for _ in range(LISTEN_FIRST):
                await beat(JUDGE_EVERY)
            judge.resume(followed.fresh(time.monotonic()))
            turn = 0
            while self._is_present(followed) and self._place(followed.plan) < JUDGES:
                turn += 1
                progress = followed.advance(time.monotonic())
                if newcomers or not progress.done or turn % AFTER_THE_END == 0:
                    newcomers = False
                    await self._state(followed, judge)
                self._tell_of(followed)
                await beat(JUDGE_EVERY)
        finally:
            self._mesh.link.unsubscribe(sid)

    async def _state(self, followed: FollowedRollout, judge: Judge) -> None:
        now = time.monotonic()
        ready = self._is_ready(followed.plan)
        statement = judge.state(now, followed.elapsed(now), ready)
        if statement.verdict is Verdict.BAD and not followed.progress.done:
            await self._abort(followed.plan, statement)
            return
        followed.heard(statement, now)
        with contextlib.suppress(SwarmError):  # without a connection nobody could hear it
            subject = self._subjects.guards(self._model, self._node)
            self._mesh.link.publish(subject, statement.encode())

    def _is_ready(self, plan: RolloutPlan) -> bool:
        """Whether each stage of the new version has a node."""
        serving = self._versions.serving.get(plan.version)
        return serving is not None and all(
            self._mesh.placement.serving(serving.info, stage.stage) for stage in serving.info.stages
        )

    async def _abort(self, plan: RolloutPlan, statement: Statement) -> None:
        why = reason(plan, statement)
        try:
            first = await abort(
                self._mesh.link, self._mesh.subjects, self._model, plan.id, self._node, why
            )
        except SwarmError as error:
            log.warning("a rollout cannot be ended yet: %s", error)
            return  # the next statement is as bad
        followed = rollout_of(self._mesh.rollouts, self._model)
        if followed is not None and followed.plan.id == plan.id:
            followed.abort(why)
        if first:
            log.warning("%s@%s is rolled back: %s", self._model, plan.version, why)
            self._tell("rolled-back", self._named(plan) | {"detail": why})

    def _tell_of(self, followed: FollowedRollout) -> None:
        """Publish the rollout's steps as events; one of the judges does."""
        if self._place(followed.plan):
            return
        share = share_of(followed.plan, followed.progress)
        done = followed.progress.done
        state = f"{followed.plan.id} {share} {done}"
        if state != self._published and followed.progress.step >= 0:
            self._published = state
            kind = "rolled-out" if done else "rollout"
            self._tell(kind, self._named(followed.plan) | {"share": share})

    def _named(self, plan: RolloutPlan) -> dict[str, Any]:
        return {"model": self._model, "version": plan.version, "plan": plan.id}

    def status(self) -> dict[str, Any]:
        """Of a status document: the rollout as this node sees it; {} without one."""
        followed = rollout_of(self._mesh.rollouts, self._model)
        if followed is None:
            return {}
        progress = followed.progress
        state = "running"
        if progress.aborted or progress.done:
            state = "rolled-back" if progress.aborted else "done"
        document = self._named(followed.plan) | {
            "share": share_of(followed.plan, progress),
            "state": state,
        }
        if followed.reason:
            document["reason"] = followed.reason
        if self._judge_of is not None and self._judge_of[0] == followed.plan.id:
            document["reports_refused"] = self._judge_of[1].refused
        return {"rollout": document}
