"""Submitting at a site, over a link that is cut: real servers, a mesh that answers by itself."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from site_tools import doubled, forwarding, numbered, read
from support.linked_sites import SITE, LinkedServers
from support.waiting import GENEROUS, eventually

import swarm
from swarm.errors import InvalidArgument, NotFound, ResourceExhausted, Status, Unavailable
from swarm.sites.forwarding import dropped_so_far
from swarm.sites.store import DROP_OLDEST, SiteStore, StoreLimits
from swarm.sites.subjects import SiteSubjects
from swarm.wire.messages import Request, Result

COUNT = 120


async def test_each_request_of_a_site_that_is_cut_off_is_answered_once_and_in_order(
    servers: LinkedServers,
) -> None:
    async with (
        swarm.connect(servers.site.url) as site,
        swarm.connect(servers.hub.url) as hub,
        forwarding(hub) as forwarder,
    ):
        await SiteStore(hub.link, hub.subjects, SITE).prepare(StoreLimits())
        await site.submit("m", numbered(0), agent="a")
        (first,) = await read(site, "a", 1)
        assert first.result.outputs["y"] == [0]
        reading = [asyncio.create_task(read(site, agent, COUNT)) for agent in "ab"]
        for number in range(1, COUNT + 1):
            if number == 20:
                await servers.link.cut()
                await eventually(lambda: "away" in forwarder.figures.state)
            if number == 60:
                await servers.link.heal()
                await eventually(lambda: forwarder.figures.state == "forwarding")
            if number == 90:
                servers.link.silence()
            for agent in "ab":
                ticket = await site.submit("m", numbered(number), agent=agent)
                assert (ticket.site, ticket.agent) == (SITE, agent)
        await eventually(lambda: forwarder.figures.state != "forwarding")
        await servers.link.heal()
        for answers in await asyncio.gather(*reading):
            values = [int(answer.result.outputs["y"][0]) for answer in answers]
            assert values == [2 * number for number in range(1, COUNT + 1)]
            numbers = [answer.number for answer in answers]
            assert numbers == sorted(set(numbers))
            assert {answer.dropped for answer in answers} == {0}
        # Readers may have an answer before the forwarder hears that the site has stored it.
        await eventually(lambda: forwarder.figures.answered == 2 * COUNT + 1)


async def test_two_forwarders_and_a_restart_answer_nothing_twice(servers: LinkedServers) -> None:
    computed: list[int] = []

    async def slowly(model: str, request: Request) -> Result:
        computed.append(int(request.inputs["x"][0]))
        await asyncio.sleep(0.02)  # a run takes time, so that several are under way
        return await doubled(model, request)

    async with (
        swarm.connect(servers.site.url, agent="a") as site,
        swarm.connect(servers.hub.url) as one,
        swarm.connect(servers.hub.url) as two,
    ):
        reading = None
        async with forwarding(one, slowly), forwarding(two, slowly):
            await SiteStore(one.link, one.subjects, SITE).prepare(StoreLimits())
            reading = asyncio.create_task(read(site, "a", COUNT))
            for number in range(COUNT // 2):
                await site.submit("m", numbered(number))
        async with forwarding(two, slowly) as last:
            for number in range(COUNT // 2, COUNT):
                await site.submit("m", numbered(number))
            answers = await reading
            assert last.figures.answered > 0
        assert [int(each.result.outputs["y"][0]) for each in answers] == [
            2 * number for number in range(COUNT)
        ]
        assert set(computed) == set(range(COUNT))
        answers_left = [each async for each in site.results(follow=False)]
        assert answers_left == []


async def test_a_full_store_refuses_the_newest_request_at_once(servers: LinkedServers) -> None:
    large = {"x": np.zeros(4000, np.int64)}
    async with swarm.connect(servers.site.url, agent="a") as site:
        store = SiteStore(site.link, site.subjects, SITE)
        await store.prepare(StoreLimits(max_bytes=100_000))
        fit = 100_000 // 32_500
        for _ in range(fit):
            await site.submit("m", large)
        with pytest.raises(ResourceExhausted, match="site 'edge1' stores no more requests"):
            await site.submit("m", large)
        state = await store.state()
        assert state.waiting == fit
        assert state.waiting_bytes <= 100_000
        async with swarm.connect(servers.hub.url) as hub, forwarding(hub):
            assert len(await read(site, "a", state.waiting)) == state.waiting


async def test_a_store_that_drops_the_oldest_says_how_many_it_dropped(
    servers: LinkedServers,
) -> None:
    large = np.zeros(4000, np.int64)
    async with swarm.connect(servers.site.url, agent="a") as site:
        store = SiteStore(site.link, site.subjects, SITE)
        await store.prepare(StoreLimits(max_bytes=100_000, when_full=DROP_OLDEST))
        for number in range(10):
            await site.submit("m", {"x": large + number})
        state = await store.state()
        kept = state.waiting
        assert 0 < kept < 10
        assert dropped_so_far(await store.progress(), state.first) == 10 - kept, "at the site too"
        async with swarm.connect(servers.hub.url) as hub, forwarding(hub) as forwarder:
            answers = await read(site, "a", kept)
            assert forwarder.figures.dropped == 10 - kept
        assert [each.number for each in answers] == list(range(11 - kept, 11))
        assert {each.dropped for each in answers} == {10 - kept}
        assert answers[-1].result.outputs["y"][0] == 18
        after = await store.state()
        assert dropped_so_far(await store.progress(), after.first) == 10 - kept


async def test_answers_that_nobody_reads_hold_up_the_work_and_lose_nothing(
    servers: LinkedServers,
) -> None:
    large = np.zeros(4000, np.int64)
    async with swarm.connect(servers.site.url, agent="a") as site:
        store = SiteStore(site.link, site.subjects, SITE)
        await store.prepare(StoreLimits(max_bytes=100_000))
        async with swarm.connect(servers.hub.url) as hub, forwarding(hub) as forwarder:
            sent = 0
            async with asyncio.timeout(GENEROUS):
                while "no room for answers" not in forwarder.figures.state:
                    try:
                        await site.submit("m", {"x": large + sent})
                        sent += 1
                    except ResourceExhausted:  # until the forwarder takes the oldest
                        await asyncio.sleep(0.01)
            answers = await read(site, "a", sent)
        assert [int(each.result.outputs["y"][0]) for each in answers] == [
            2 * number for number in range(sent)
        ]


async def test_any_client_submits_in_json_and_a_bad_request_is_answered_too(
    servers: LinkedServers,
) -> None:
    async with (
        swarm.connect(servers.site.url, agent="a") as site,
        swarm.connect(servers.hub.url) as hub,
        forwarding(hub),
    ):
        store = SiteStore(site.link, site.subjects, SITE)
        await store.prepare(StoreLimits())
        good = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[7]}],"id":"mine"}'
        subject = SiteSubjects.of(site.subjects).submit(SITE, "a", "m")
        for body in (good, b"{", b"\xff\xff"):
            stored = await site.link.request(subject, body, from_server=True)
            assert b'"seq"' in bytes(stored.data)
        await site.submit("unknown", numbered(1))
        answers = await read(site, "a", 4)
        assert [each.result.status for each in answers] == [
            Status.OK,
            Status.INVALID_ARGUMENT,
            Status.INVALID_ARGUMENT,
            Status.NOT_FOUND,
        ]
        assert answers[0].result.outputs["y"] == [14]
        assert answers[0].result.id == "mine"


async def test_a_site_without_a_store_or_a_name_is_told_in_one_line(
    servers: LinkedServers,
) -> None:
    async with swarm.connect(servers.site.url, agent="a") as site:
        with pytest.raises(NotFound, match="swarm site add edge1"):
            await site.submit("m", numbered(1))
        with pytest.raises(Unavailable, match="no server has that JetStream domain"):
            await site.submit("m", numbered(1), site="nowhere")
        with pytest.raises(InvalidArgument, match="by which the answers are read"):
            await swarm.connect(servers.site.url).submit("m", numbered(1), site=SITE)
    async with swarm.connect(servers.hub.url, agent="a") as hub:
        await SiteStore(hub.link, hub.subjects, SITE).prepare(StoreLimits())
        ticket = await hub.submit("m", numbered(1), site=SITE)
        assert ticket.number == 1, "the hub may submit at a site too"
        await servers.link.cut()
        with pytest.raises(Unavailable, match="its link is cut"):
            await hub.submit("m", numbered(1), site=SITE)


def test_the_package_has_the_names_of_sites() -> None:
    assert {"Answer", "Ticket"} <= {*swarm.__all__}
    assert swarm.Ticket.__module__ == swarm.Answer.__module__ == "swarm.sites.client"
    assert callable(swarm.Mesh.submit)
