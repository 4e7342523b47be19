"""A requester keeps the ways to stage 1 of the model versions that it uses, and of few others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_stage import INFO
from neighbours import LONG, Shop
from support.handover import change_handover

from swarm.errors import Status
from swarm.model import ModelInfo
from swarm.requests.requester import MOST_VERSIONS

pytestmark = pytest.mark.simulated


def versions(count: int) -> list[ModelInfo]:
    return [replace(INFO, version=str(number)) for number in range(count)]


async def use(shop: Shop, info: ModelInfo) -> None:
    asked = await shop.ask(info=info)
    shop.answer()
    assert (await asked).status is Status.OK


def kept(shop: Shop) -> int:
    """Ways that are kept: each hears of processes that end."""
    return len(shop.host.on_gone)


async def test_the_ways_of_old_versions_are_not_kept_for_ever() -> None:
    shop = Shop()
    for info in versions(3 * MOST_VERSIONS):
        await use(shop, info)
        assert kept(shop) <= MOST_VERSIONS
    shop.requester.close()
    assert kept(shop) == 0


async def test_the_way_that_was_not_used_for_longest_goes_first() -> None:
    shop = Shop()
    first, second, *others = versions(MOST_VERSIONS + 1)
    await use(shop, first)
    await use(shop, second)
    admissions = [shop.requester.admission(info) for info in (second, first)]
    for info in others:
        await use(shop, info)
    assert shop.requester.admission(first) is admissions[1]
    assert shop.requester.admission(second) is not admissions[0]


async def test_a_way_with_requests_under_way_stays_until_they_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closed, it would store them: they would be computed twice."""
    change_handover(monkeypatch, least_patience=LONG)
    shop = Shop()
    infos = versions(MOST_VERSIONS + 4)
    asked = [await shop.ask(info=info) for info in infos]
    assert kept(shop) == len(infos)
    admissions = [shop.requester.admission(info) for info in infos]
    assert [admission.inside for admission in admissions] == [1] * len(infos)
    for number in range(len(infos)):
        shop.answer(number)
    assert {(await each).status for each in asked} == {Status.OK}
    assert (shop.lanes.stored, shop.wire.subjects) == ([], [])
    await use(shop, replace(INFO, version="new"))
    assert kept(shop) == MOST_VERSIONS
