"""Plans in force on a real server: of several proposals one wins, and what is no plan is no end."""

from __future__ import annotations

import asyncio
import json

import pytest

from swarm.auto.document import MOST_NUMBER, BadPlan, PlanInForce, PlanSlot
from swarm.auto.drafts import Draft
from swarm.auto.plan_store import PlanStore
from swarm.errors import NotFound, SubjectError, Unavailable
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("test")
DRAFT = Draft((PlanSlot(1, 2, "a"), PlanSlot(3, 4, "b")), 1000.0)


@pytest.fixture
async def plans(link: Link) -> PlanStore:
    await Registry(link, SUBJECTS).prepare()
    return PlanStore(link, SUBJECTS)


async def test_of_several_proposals_one_wins(plans: PlanStore) -> None:
    seen = await plans.read("m", "1")
    assert (seen.plan, seen.revision) == (None, 0)
    made = await asyncio.gather(
        *(plans.propose("m", "1", DRAFT, f"auto-{n}", "first", seen) for n in range(5))
    )
    [won] = [plan for plan, is_in_force in made if is_in_force]
    stored = await plans.read("m", "1")
    assert stored.plan == won
    assert (won.number, won.slots, won.period_us) == (1, DRAFT.slots, 1000)
    late, was_first = await plans.propose("m", "1", DRAFT, "late", "of an old picture", seen)
    assert (late.proposer, was_first) == ("late", False)
    again, was_first = await plans.propose("m", "1", DRAFT, "auto-9", "moves", stored)
    assert (again.number, was_first) == (2, True)


async def test_a_plan_is_frozen_and_its_replicas_change_without_another_number(
    plans: PlanStore,
) -> None:
    with pytest.raises(NotFound):
        await plans.freeze("m", "1", True, "a person")
    await plans.propose("m", "1", DRAFT, "a", "first", await plans.read("m", "1"))
    assert (await plans.freeze("m", "1", True, "a person")).frozen
    scaled = await plans.replicate("m", "1", 4, 3, "b", "too much work")
    assert [slot.replicas for slot in scaled.slots] == [1, 3]
    assert (scaled.number, scaled.frozen, scaled.reason) == (1, True, "too much work")
    with pytest.raises(NotFound):
        await plans.replicate("m", "1", 9, 2, "b", "")
    with pytest.raises(BadPlan):
        await plans.replicate("m", "1", 1, 0, "b", "")
    with pytest.raises(SubjectError):
        await plans.read("m.x", "1")


async def test_replicas_for_a_plan_that_was_changed_or_frozen_meanwhile_are_not_stored(
    plans: PlanStore,
) -> None:
    await plans.propose("m", "1", DRAFT, "a", "first", await plans.read("m", "1"))
    assert (await plans.replicate("m", "1", 4, 2, "b", "busy", of=1)).slots[1].replicas == 2
    await plans.propose("m", "1", DRAFT, "a", "second", await plans.read("m", "1"))
    with pytest.raises(Unavailable):
        await plans.replicate("m", "1", 4, 3, "b", "busy", of=1)
    await plans.freeze("m", "1", True, "a person")
    with pytest.raises(Unavailable):
        await plans.replicate("m", "1", 4, 3, "b", "busy", of=2)
    stored = (await plans.read("m", "1")).plan
    assert stored is not None
    assert [slot.replicas for slot in stored.slots] == [1, 1]


@pytest.mark.parametrize("spoilt", [b"no plan", b'{"v": 1, "number": 41}', b"{}"])
async def test_what_is_no_plan_is_told_and_the_next_one_replaces_it(
    plans: PlanStore, link: Link, spoilt: bytes
) -> None:
    await jetstream.kv_put(link, SUBJECTS.config_bucket, "plan.m.1", spoilt)
    stored = await plans.read("m", "1")
    assert stored.plan is None
    assert "refused" in stored.refused
    made, was_first = await plans.propose("m", "1", DRAFT, "a", stored.refused, stored)
    assert (made.number, was_first) == (42 if b"41" in spoilt else 1, True)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_plan_with_the_largest_number_keeps_nobody_from_the_next(
    plans: PlanStore, link: Link, more: int
) -> None:
    last = PlanInForce("m", "1", 1, DRAFT.slots).document() | {"number": MOST_NUMBER + more}
    await jetstream.kv_put(link, SUBJECTS.config_bucket, "plan.m.1", json.dumps(last).encode())
    stored = await plans.read("m", "1")
    assert bool(stored.refused) is bool(more)
    _, was_first = await plans.propose("m", "1", DRAFT, "a", "moves", stored)
    after = (await plans.read("m", "1")).plan
    assert was_first
    assert after is not None
    assert after.number == 1


async def test_the_plan_of_another_version_is_not_believed(plans: PlanStore, link: Link) -> None:
    made, _ = await plans.propose("m", "1", DRAFT, "a", "first", await plans.read("m", "1"))
    await jetstream.kv_put(link, SUBJECTS.config_bucket, "plan.m.2", made.encode())
    assert "m@1" in (await plans.read("m", "2")).refused


async def test_a_plan_that_is_put_in_force_wins_against_proposals_and_stays_held(
    plans: PlanStore,
) -> None:
    other = Draft((PlanSlot(1, 4, "c"),), 700.0)
    first, before = await plans.put("m", "1", other, "a person", "pushed", frozen=False)
    assert (first.number, first.frozen, before) == (1, False, None)
    seen = await plans.read("m", "1")
    results = await asyncio.gather(
        plans.put("m", "1", other, "a person", "pushed", frozen=True),
        *(plans.propose("m", "1", DRAFT, f"auto-{n}", "better", seen) for n in range(3)),
    )
    put: PlanInForce = results[0][0]
    stored = (await plans.read("m", "1")).plan
    assert stored == put, "whoever was first, the plan of a person follows"
    assert put.number == 2 + sum(won for _, won in results[1:])
    held, replaced = await plans.put("m", "1", DRAFT, "a person", "pushed", frozen=False)
    assert (held.frozen, replaced) == (True, put), "one that is held is followed by one that is"
