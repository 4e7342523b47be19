"""The plans in force of a mesh, in the bucket of desired state: `plan.<model>.<version>`.

A plan is written by compare-and-set on the key's revision: of several proposals one wins, and a
part of a network that is cut off from the server writes none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from swarm.auto.document import MOST_NUMBER, BadPlan, PlanInForce, next_number, read_plan
from swarm.auto.drafts import Draft
from swarm.errors import NotFound, Unavailable
from swarm.link import Link, jetstream
from swarm.subjects import Subjects, token

ATTEMPTS = 8  # at a change that others change at the same time


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A version's key: its plan, None where there is none to believe; why not, in `refused`;
    revision: 0 where nothing was ever stored."""

    plan: PlanInForce | None
    revision: int
    refused: str = ""
    number: int = 0  # of the newest plan, as far as it can be read


class PlanStore:
    """Reads and proposes plans. All methods raise `Unavailable` when the server cannot be reached,
    and `SubjectError` for a name that is no token."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._bucket = subjects.config_bucket

    async def read(self, model: str, version: str) -> StoredPlan:
        """The plan of a version."""
        key = _key(model, version)
        data, revision, _ = await jetstream.kv_message(self._link, self._bucket, key)
        if data is None:
            return StoredPlan(None, revision)
        try:
            plan = read_plan(bytes(data))
            if (plan.model, plan.version) != (model, version):
                raise BadPlan(f"it is of {plan.model}@{plan.version}, in the place of {key}")
        except BadPlan as error:
            return StoredPlan(None, revision, str(error), _number(data))
        return StoredPlan(plan, revision, number=plan.number)

    async def propose(
        self,
        model: str,
        version: str,
        draft: Draft,
        proposer: str,
        reason: str,
        seen: StoredPlan,
        frozen: bool = False,
    ) -> tuple[PlanInForce, bool]:
        """Put a draft in force in the place of the plan that was seen. Returns the plan, and
        whether it is in force: it is not where somebody else was first. frozen: nodes propose no
        other one. Raises `BadPlan`."""
        plan = PlanInForce(
            model,
            version,
            next_number(seen.number),
            draft.slots,
            proposer,
            reason,
            datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            frozen,
            round(draft.period),
        )
        return plan, await self._write(plan, seen.revision)

    async def put(
        self, model: str, version: str, draft: Draft, by: str, reason: str, frozen: bool
    ) -> tuple[PlanInForce, PlanInForce | None]:
        """Put a draft in force, whatever the plan is. One that is frozen is followed by one that is
        frozen too. Returns the plan and the one before. Raises `BadPlan`, `Unavailable`."""
        for _ in range(ATTEMPTS):
            seen = await self.read(model, version)
            is_held = frozen or (seen.plan is not None and seen.plan.frozen)
            plan, is_in_force = await self.propose(model, version, draft, by, reason, seen, is_held)
            if is_in_force:
                return plan, seen.plan
        raise _busy(model, version)

    async def freeze(self, model: str, version: str, frozen: bool, by: str) -> PlanInForce:
        """Let nodes propose no other plan, or let them again. Raises `NotFound`, `Unavailable`."""
        reason = "frozen by an operator" if frozen else "free again"
        return await self._change(
            model, version, lambda plan: replace(plan, frozen=frozen, reason=reason, proposer=by)
        )

    async def replicate(
        self,
        model: str,
        version: str,
        stage: int,
        replicas: int,
        by: str,
        reason: str,
        of: int | None = None,
    ) -> PlanInForce:
        """Let so many nodes fill the slot of a stage. of: the number of the plan that was looked
        at; another one, or a frozen one, stays as it is. Raises `NotFound` where no slot has the
        stage, `BadPlan` for a number out of range, `Unavailable`."""

        def changed(plan: PlanInForce) -> PlanInForce:
            if of is not None and (plan.number != of or plan.frozen):
                raise Unavailable(f"the plan of {model}@{version} was changed or frozen meanwhile")
            number = plan.of_stage(stage)
            if number is None:
                raise NotFound(f"{model}@{version}: no slot of its plan has stage {stage}")
            slots = list(plan.slots)
            slots[number] = replace(slots[number], replicas=replicas)
            return replace(plan, slots=tuple(slots), reason=reason, proposer=by)

        return await self._change(model, version, changed)

    async def _change(
        self, model: str, version: str, changed: Callable[[PlanInForce], PlanInForce]
    ) -> PlanInForce:
        """Change what leaves the slots' ranges as they are. The plan keeps its number: who fills
        its slots goes on."""
        for _ in range(ATTEMPTS):
            seen = await self.read(model, version)
            if seen.plan is None:
                why = seen.refused or "nodes of role auto make one, some seconds after their start"
                raise NotFound(f"{model}@{version} has no plan in force: {why}")
            plan = changed(seen.plan)
            if await self._write(plan, seen.revision):
                return plan
        raise _busy(model, version)

    async def _write(self, plan: PlanInForce, after: int) -> bool:
        key = _key(plan.model, plan.version)
        value = plan.encode()
        stored = await jetstream.kv_replace(self._link, self._bucket, key, value, after=after)
        return stored is not None


def _busy(model: str, version: str) -> Unavailable:
    return Unavailable(f"others change the plan of {model}@{version} just now: try again")


def _key(model: str, version: str) -> str:
    return f"plan.{token(model, 'model name')}.{token(version, 'version')}"


def _number(data: bytes | memoryview) -> int:
    """Of a plan that is refused: the next one has another number even so."""
    try:
        number = json.loads(bytes(data))["number"]
        return number if type(number) is int and 0 < number <= MOST_NUMBER else 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
