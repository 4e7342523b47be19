"""The rollouts that one process follows, and what it reports of them.

A process follows the rollouts of the models that it asks or serves. It hears the judges' statements
and aborts. While it asks, it reports what it observes. It has no timer: a report goes out behind an
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from swarm.errors import DecodeError, InvalidArgument, Status, SwarmError
from swarm.link import Link, LinkMessage, jetstream
from swarm.models.registry import REASON_LIMIT, InForce, Registry, abort_key, abort_reason
from swarm.models.trials import Trials, TriedRequest
from swarm.rollout.followed import FollowedRollout
from swarm.rollout.plan import RolloutPlan
from swarm.rollout.shadows import Shadows, answered
from swarm.rollout.statement import Statement
from swarm.rollout.subjects import RolloutSubjects, judge_of
from swarm.subjects import Subjects
from swarm.wire.messages import Result

# Failures that say nothing of the version: who asks is at fault.
_NOT_COUNTED = {Status.INVALID_ARGUMENT, Status.UNAUTHENTICATED, Status.PERMISSION_DENIED}
# Failures of a version that another one need not share.
_ASKED_ELSEWHERE = {Status.INTERNAL, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED}


class Rollouts(Trials):
    """The rollouts that this process follows. under_way(): as of `Shadows`."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        under_way: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.shadows = Shadows(self.of, self.compared, under_way)
        self._link = link
        self._subjects = RolloutSubjects.of(subjects)
        self._clock = clock
        self._followed: dict[str, FollowedRollout] = {}
        self._sids: dict[str, int] = {}

    @property
    def follows(self) -> bool:
        return bool(self._followed)

    def of(self, model: str) -> FollowedRollout | None:
        """The rollout of a model, or None."""
        return self._followed.get(model)

    def share(self, model: str) -> float:
        """Percent of the traffic for the version under rollout; 0.0 without one."""
        followed = self._followed.get(model)
        return 0.0 if followed is None else followed.share(self._clock())

    def follow(self, model: str, present: InForce | None) -> None:
        """A model's desired state was read: follow its rollout, and no other one."""
        plan = None if present is None else present.state.rollout
        if present is None or not isinstance(plan, RolloutPlan):
            self._unfollow(model)
            return
        followed = self._followed.get(model)
        if followed is None or followed.plan.id != plan.id:
            base = max(present.state.serve, key=lambda entry: entry.share).version
            followed = FollowedRollout(plan, base, present.age, self._clock())
            self._followed[model] = followed
            self._listen(model)
            self._report(model, followed)  # by which a judge knows of this process
        if present.aborted:
            followed.abort(present.aborted)

    def _unfollow(self, model: str) -> None:
        if self._followed.pop(model, None) is not None and model in self._sids:
            self._link.unsubscribe(self._sids.pop(model))

    def _listen(self, model: str) -> None:
        subject = self._subjects.guards_all(model)
        if model in self._sids or not self._link.grants.may_subscribe(subject):
            return

        def stated(message: LinkMessage) -> None:
            followed = self._followed.get(model)
            if followed is None:
                return
            with contextlib.suppress(DecodeError):  # a foreign message says nothing
                statement = Statement.decode(message.data)
                if statement.judge == judge_of(message.subject, message.headers):
                    followed.heard(statement, self._clock())

        self._sids[model] = self._link.subscribe(subject, stated)

    def aborted(self, subject: str, data: bytes | memoryview) -> bool:
        """A key of the registry has changed: whether that was an abort. One of a rollout that is
        followed here ends it at once."""
        head = f"{self._subjects.root}.config.abort."
        if not subject.startswith(head):
            return False
        model, _, plan = subject.removeprefix(head).partition(".")
        followed = self._followed.get(model)
        if followed is not None and followed.plan.id == plan:
            followed.abort(abort_reason(data))
        return True

    async def ask(self, tried: TriedRequest) -> Result:
        """See `Trials`. An answer that is degraded is none of the version's."""
        compare = self.shadows.begin(tried)
        began = time.perf_counter()
        result = await answered(tried.request, compare)
        took = time.perf_counter() - began
        status = Status.UNAVAILABLE if result.degraded else result.status
        base = self.answered(tried.model, tried.version, took, status, reached=result.reached)
        late = tried.until <= asyncio.get_running_loop().time()
        if not base or tried.instead is None or result.degraded or late:
            return result
        return await tried.instead(base) or result

    def answered(
        self, model: str, version: str, seconds: float, status: Status, *, reached: bool = True
    ) -> str:
        """A request of this process ended, after so many seconds. reached: whether a node of the
        version may have had it; what no lane took is no evidence. Returns the version that it may
        be asked of instead, where the one under rollout has failed it; else ""."""
        followed = self._followed.get(model)
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
        followed = self._followed.get(model)
        if followed is None or followed.plan.id != plan:
            return
        followed.tally.compared(alike, self._clock())
        self._report_if_due(model, followed)

    def cannot_run(self, model: str, reason: str) -> None:
        """Whether this node can run the version under rollout, to be told at each look: "", or why
        it cannot, which its judges hear."""
        followed = self._followed.get(model)
        if followed is None:
            return
        followed.cannot_run(reason)
        if reason and not followed.progress.aborted:
            self._report_if_due(model, followed)

    def _report_if_due(self, model: str, followed: FollowedRollout) -> None:
        if followed.is_report_due(self._clock()):
            self._report(model, followed)

    def _report(self, model: str, followed: FollowedRollout) -> None:
        report = followed.report(self.name, self._clock())
        try:
            subject = self._subjects.reports(model, self.name)
            if self._link.grants.may_publish(subject):
                self._link.publish(subject, report.encode())
        except SwarmError:
            return  # there is no connection: the next report says the same

    def close(self) -> None:
        """Follow nothing any more."""
        self.shadows.close()
        for model in list(self._followed):
            self._unfollow(model)


def rollout_of(trials: Trials, model: str) -> FollowedRollout | None:
    """The rollout of a model that a client follows, or None: with this feature its trials are
    rollouts."""
    return cast("FollowedRollout | None", trials.of(model))


# A rollout in the registry: an operator puts it there, and a node ends it.


async def roll_out(registry: Registry, model: str, plan: RolloutPlan, done: str = "") -> str:
    """Let a version prove itself by a plan, beside the version that serves, which is returned.
    done: as for `Registry.promote`.

    Raises `NotFound` where the version, or a version that serves, is not in the mesh;
    `InvalidArgument` while another rollout runs, and for the version that serves.
    """
    await registry.manifest(model, plan.version)

    def with_rollout(document: dict[str, Any]) -> dict[str, Any]:
        running = document.get("rollout")
        if running is not None:
            raise InvalidArgument(
                f"a rollout of {model}@{running['version']} runs: wait for its end (`swarm "
                f"model status {model}`), or end it by `swarm model rollback {model}`"
            )
        if any(entry["version"] == plan.version for entry in document["serve"]):
            raise InvalidArgument(f"{model}@{plan.version} serves already: name another one")
        return document | {"rollout": plan.document()}

    return await registry.change(model, with_rollout, done)


async def abort(
    link: Link, subjects: Subjects, model: str, plan: str, node: str, reason: str
) -> bool:
    """End a rollout: its traffic goes back to the version before. The first word counts: whether
    this was it. Raises `Unavailable`."""
    value = json.dumps({"v": 1, "node": node, "reason": reason[:REASON_LIMIT]}).encode()
    key = abort_key(model, plan)
    stored = await jetstream.kv_replace(link, subjects.config_bucket, key, value, after=0)
    return stored is not None
