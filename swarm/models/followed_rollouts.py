"""The rollouts that one process follows: the present share of each, and what was observed of it.

A process follows the rollouts of the models that it asks or serves. It hears the judges' statements
and aborts, and computes the share from them (`swarm.rollout.progress`). While it asks, it reports
what it observes. It has no timer: a report goes out behind an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from swarm.errors import DecodeError, Status, SwarmError
from swarm.ids import ulid
from swarm.link import Link, LinkMessage
from swarm.models.registry import InForce, abort_reason
from swarm.rollout import Plan, Progress, Report, Statement, Verdict, progressed, share_of
from swarm.rollout.statement import MOST_REASON
from swarm.rollout.tally import Tally
from swarm.rollout.verdict import verdict, worst
from swarm.subjects import Subjects, speaker

REPORT_EVERY = 0.4  # seconds between reports, at least
HEARD_FOR = 3.0  # seconds for which a statement counts
MOST_JUDGES = 8  # whose statements are kept
# Failures that say nothing of the version: who asks is at fault.
_NOT_COUNTED = {Status.INVALID_ARGUMENT, Status.UNAUTHENTICATED, Status.PERMISSION_DENIED}
# Failures of a version that another one need not share.
_ASKED_ELSEWHERE = {Status.INTERNAL, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED}


class Followed:
    """One rollout as this process sees it. `now` in seconds, of one monotonic clock.

    base: the version with the largest share beside it, to which requests go that it fails.
    """

    def __init__(self, plan: Plan, base: str, age: float, now: float) -> None:
        self.plan = plan
        self.base = base
        self.reason = ""  # why it was aborted
        self.progress = Progress()
        self.tally = Tally(plan.guards)
        self.statements: dict[str, tuple[Statement, float]] = {}
        self._began = now - age
        self._heard_at = now
        self._reported = 0.0
        self._cannot_run = ""
        self._broken_here = False

    def elapsed(self, now: float) -> float:
        """Seconds since the plan was stored."""
        return now - self._began

    def heard(self, statement: Statement, now: float) -> None:
        """A judge states how the guards stand."""
        if statement.plan != self.plan.id:
            return
        if statement.judge in self.statements or len(self.statements) < MOST_JUDGES:
            self.statements[statement.judge] = statement, now
        self._heard_at = now

    def abort(self, reason: str) -> None:
        """A judge has ended the rollout."""
        self.reason = reason
        self.progress = replace(self.progress, aborted=True)

    def fresh(self, now: float) -> list[Statement]:
        """The statements that count at present."""
        self.statements = {
            judge: (statement, at)
            for judge, (statement, at) in self.statements.items()
            if now - at < HEARD_FOR
        }
        return [statement for statement, _ in self.statements.values()]

    def advance(self, now: float) -> Progress:
        """Take in what was heard; returns the progress of now."""
        self.progress = progressed(
            self.plan, self.progress, self.elapsed(now), self.fresh(now), now - self._heard_at
        )
        return self.progress

    def share(self, now: float) -> float:
        """Percent of this process's requests for the new version. None go to a version that has
        broken a guard here, whether a judge knows that or not."""
        return 0.0 if self._broken_here else share_of(self.plan, self.advance(now))

    def is_report_due(self, now: float) -> bool:
        """Whether the last report is old enough."""
        return now - self._reported >= REPORT_EVERY

    def report(self, reporter: str, now: float) -> Report:
        """What was observed, as of now."""
        self._reported = now
        total, recent = self.tally.total(), self.tally.recent(now)
        verdicts = [
            verdict(guard, seen, late, self.plan.samples)
            for guard, seen, late in zip(self.plan.guards, total, recent, strict=True)
        ]
        self._broken_here = worst(verdicts) is Verdict.BAD
        return Report(reporter, self.plan.id, self.progress.step, total, recent, self._cannot_run)

    def cannot_run(self, reason: str) -> None:
        """This process is a node that cannot run the version, and why; "" where it can."""
        self._cannot_run = reason[:MOST_REASON]


class Rollouts:
    """The rollouts that this process follows. followed: by model."""

    def __init__(
        self, link: Link, subjects: Subjects, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = ulid()  # of this process, as a reporter
        self._link = link
        self._subjects = subjects
        self._clock = clock
        self.followed: dict[str, Followed] = {}
        self._sids: dict[str, int] = {}

    def of(self, model: str) -> Followed | None:
        """The rollout of a model, or None."""
        return self.followed.get(model)

    def share(self, model: str) -> float:
        """Percent of the traffic for the version under rollout; 0.0 without one."""
        followed = self.followed.get(model)
        return 0.0 if followed is None else followed.share(self._clock())

    def follow(self, model: str, present: InForce | None) -> None:
        """A model's desired state was read: follow its rollout, and no other one."""
        plan = None if present is None else present.state.rollout
        if present is None or plan is None:
            self._unfollow(model)
            return
        followed = self.followed.get(model)
        if followed is None or followed.plan.id != plan.id:
            base = max(present.state.serve, key=lambda entry: entry.share).version
            followed = Followed(plan, base, present.age, self._clock())
            self.followed[model] = followed
            self._listen(model)
            self._report(model, followed)  # by which a judge knows of this process
        if present.aborted:
            followed.abort(present.aborted)

    def _unfollow(self, model: str) -> None:
        if self.followed.pop(model, None) is not None and model in self._sids:
            self._link.unsubscribe(self._sids.pop(model))

    def _listen(self, model: str) -> None:
        subject = self._subjects.guards(model)
        if model in self._sids or not self._link.grants.may_subscribe(subject):
            return

        def stated(message: LinkMessage) -> None:
            followed = self.followed.get(model)
            if followed is None:
                return
            with contextlib.suppress(DecodeError):  # a foreign message says nothing
                statement = Statement.decode(message.data)
                if statement.judge == speaker(message.subject, message.headers):
                    followed.heard(statement, self._clock())

        self._sids[model] = self._link.subscribe(subject, stated)

    def aborted(self, subject: str, data: bytes | memoryview) -> bool:
        """A key of the registry has changed: whether that was an abort. One of a rollout that is
        followed here ends it at once."""
        head = f"{self._subjects.root}.config.abort."
        if not subject.startswith(head):
            return False
        model, _, plan = subject.removeprefix(head).partition(".")
        followed = self.followed.get(model)
        if followed is not None and followed.plan.id == plan:
            followed.abort(abort_reason(data))
        return True

    def answered(
        self, model: str, version: str, seconds: float, status: Status, *, reached: bool = True
    ) -> str:
        """A request of this process ended, after so many seconds. reached: whether a node of the
        version may have had it; what no lane took is no evidence. Returns the version that it may
        be asked of instead, where the one under rollout has failed it; else ""."""
        followed = self.followed.get(model)
        if followed is None:
            return ""
        is_new = version == followed.plan.version
        if status not in _NOT_COUNTED and reached:
            failed, now = status is not Status.OK, self._clock()
            count = partial(followed.tally.answered, seconds, failed, now, beside=not is_new)
            if status is Status.DEADLINE_EXCEEDED:
                self._call_if_heard(count)
            else:
                count()
        self._report_if_due(model, followed)
        elsewhere = is_new and not followed.progress.done and status in _ASKED_ELSEWHERE
        return followed.base if elsewhere else ""

    def _call_if_heard(self, count: Callable[[], None]) -> None:
        """An answer did not come. That is evidence once the server has answered a ping: behind a
        link that was cut without a word nothing comes, whatever the versions do."""

        def answered(pong: asyncio.Future[None]) -> None:
            if not pong.cancelled() and pong.exception() is None:
                count()

        with contextlib.suppress(SwarmError):  # there is no connection: no evidence
            self._link.sync().add_done_callback(answered)

    def compared(self, model: str, plan: str, alike: bool) -> None:
        """The new version's answer to a copy of a request was compared."""
        followed = self.followed.get(model)
        if followed is None or followed.plan.id != plan:
            return
        followed.tally.compared(alike, self._clock())
        self._report_if_due(model, followed)

    def cannot_run(self, model: str, reason: str) -> None:
        """Whether this node can run the version under rollout, to be told at each look: "", or why
        it cannot, which its judges hear."""
        followed = self.followed.get(model)
        if followed is None:
            return
        followed.cannot_run(reason)
        if reason and not followed.progress.aborted:
            self._report_if_due(model, followed)

    def _report_if_due(self, model: str, followed: Followed) -> None:
        if followed.is_report_due(self._clock()):
            self._report(model, followed)

    def _report(self, model: str, followed: Followed) -> None:
        report = followed.report(self.name, self._clock())
        try:
            subject = self._subjects.reports(model, self.name)
            if self._link.grants.may_publish(subject):
                self._link.publish(subject, report.encode())
        except SwarmError:
            return  # there is no connection: the next report says the same

    def close(self) -> None:
        """Follow nothing any more."""
        for model in list(self.followed):
            self._unfollow(model)
