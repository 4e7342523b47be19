"""A link that flaps, clocks that are hours apart, a disk that is full: nothing wrong, one line."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from site_tools import forwarding, numbered, read
from support.linked_sites import SITE, LinkedServers
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument, NoResponders, ResourceExhausted, Status
from swarm.link import LinkMessage
from swarm.sites.store import SiteStore, StoreLimits
from swarm.wire.messages import Request, Result

HOURS = 5 * 3600


async def test_over_a_link_that_drops_again_and_again_each_answer_comes_once(
    servers: LinkedServers,
) -> None:
    async with (
        swarm.connect(servers.site.url, agent="a") as site,
        swarm.connect(servers.hub.url) as hub,
        forwarding(hub) as forwarder,
    ):
        await SiteStore(site.link, site.subjects, SITE).prepare(StoreLimits())
        reading = asyncio.create_task(read(site, "a", 60))
        for number in range(60):
            if number % 20 == 5:
                await servers.link.cut()
            if number % 20 == 10:
                await servers.link.heal()
                answered = forwarder.figures.answered
                await eventually(lambda n=answered: forwarder.figures.answered > n)  # type: ignore[misc]
            await site.submit("m", numbered(number))
        answers = await reading
        assert [int(each.result.outputs["y"][0]) for each in answers] == [
            2 * number for number in range(60)
        ]


async def test_a_request_under_a_bad_name_or_with_forged_headers_holds_nobody_up(
    servers: LinkedServers,
) -> None:
    async with (
        swarm.connect(servers.site.url, agent="a") as site,
        swarm.connect(servers.hub.url) as hub,
    ):
        store = SiteStore(site.link, site.subjects, SITE)
        await store.prepare(StoreLimits())
        forged = (
            b"NATS/1.0\r\nNats-Subject: swarm.default.submit.edge1.b.m\r\nNats-Sequence: 900\r\n"
            b"Swarm-Number: 77\r\n\r\n"
        )
        body = b'{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[7]}]}'
        root = f"swarm.default.submit.{SITE}"
        for subject, headers in (
            (f"{root}.a%b.m", b""),
            (f"{root}.a.m%", b""),
            (f"{root}.a.m", forged),
        ):
            stored = await site.link.request(subject, body, 2.0, headers, from_server=True)
            assert b'"seq"' in bytes(stored.data)
        with pytest.raises(NoResponders):  # the store takes no other depth
            await site.link.request(f"{root}.a", body, 2.0, from_server=True)
        await store.mark_read("a", 0)
        await site.submit("m", numbered(4))
        async with forwarding(hub):
            answers = await read(site, "a", 3)
        assert [each.number for each in answers] == [2, 3, 4]
        assert [each.result.status for each in answers] == ["NOT_FOUND", "OK", "OK"]
        assert answers[1].result.outputs["y"] == [14]


async def test_an_answer_that_has_no_form_is_a_failure_and_holds_nobody_up(
    servers: LinkedServers,
) -> None:
    async def complex_first(model: str, request: Request) -> Result:
        dtype = np.complex128 if request.inputs["x"][0] == 1 else np.int64
        return Result(request.id, model, outputs={"y": request.inputs["x"].astype(dtype)})

    async with (
        swarm.connect(servers.site.url, agent="a") as site,
        swarm.connect(servers.hub.url) as hub,
    ):
        await SiteStore(site.link, site.subjects, SITE).prepare(StoreLimits())
        await site.submit("m", numbered(1))
        await site.submit("m", numbered(2))
        async with forwarding(hub, complex_first):
            answers = await read(site, "a", 2)
        assert [each.result.status is Status.OK for each in answers] == [False, True]


async def test_two_agents_may_choose_the_same_id_and_one_does_not_take_anothers_place(
    servers: LinkedServers,
) -> None:
    async with (
        swarm.connect(servers.site.url) as site,
        swarm.connect(servers.hub.url) as hub,
    ):
        await SiteStore(site.link, site.subjects, SITE).prepare(StoreLimits())
        first = await site.submit("m", numbered(1), agent="a", request_id="1")
        again = await site.submit("m", numbered(1), agent="a", request_id="1")
        other = await site.submit("m", numbered(2), agent="b", request_id="1")
        assert (again.number, other.number) == (first.number, first.number + 1)
        another = await site.submit("m", numbered(9), agent="a", request_id="1")
        assert another.number == other.number + 1, "another request of that id is stored too"
        with pytest.raises(InvalidArgument, match="id"):
            await site.submit("m", numbered(3), agent="a", request_id="1\r\nNats-Rollup: all")
        async with forwarding(hub):
            [answer] = await read(site, "b", 1)
        assert (answer.result.id, int(answer.result.outputs["y"][0])) == ("1", 4)


async def test_no_age_and_no_budget_compares_the_clocks_of_two_sites(
    servers: LinkedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks of clients and forwarder, against those of both servers."""
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() - HOURS)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - HOURS * 1_000_000_000)
    async with (
        swarm.connect(servers.site.url, agent="a") as site,
        swarm.connect(servers.hub.url) as hub,
    ):
        store = SiteStore(site.link, site.subjects, SITE)
        await store.prepare(StoreLimits())
        await site.submit("m", numbered(1), budget=0.5)
        assert 0 <= (await store.state()).oldest < 60
        async with forwarding(hub):
            (answer,) = await read(site, "a", 1)
        assert answer.result.outputs["y"] == [2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("no `mount` here")
    command = [mount, "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a small disk needs root rights: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_site_whose_disk_is_full_refuses_in_one_line_and_loses_nothing(
    small_disk: Path,
) -> None:
    large = np.zeros(100_000, np.int64)
    async with (
        EmbeddedServer(store=small_disk / "store", domain=SITE) as server,
        swarm.connect(server.url, agent="a") as site,
    ):
        await SiteStore(site.link, site.subjects, SITE).prepare(StoreLimits())
        await site.submit("m", {"x": large})
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with pytest.raises(ResourceExhausted, match="its disk is full") as refusal:
            await site.submit("m", {"x": large + 1})
        assert len(str(refusal.value).splitlines()) == 1
        filler.unlink()
        await server.kill()
        await server.start()
        await site.link.ready(GENEROUS)
        ticket = await site.submit("m", {"x": large + 2})
        assert ticket.number == 2, "what was refused was not stored"
        async with forwarding(site):
            answers = await read(site, "a", 2)
        assert [int(each.result.outputs["y"][0]) for each in answers] == [0, 4]


async def test_a_site_that_answers_as_no_server_does_ends_no_forwarder(
    server: EmbeddedServer,
) -> None:
    async with swarm.connect(server.url) as hub, swarm.connect(server.url) as hostile:

        def nonsense(message: LinkMessage) -> None:
            hostile.link.publish(message.reply, b'{"state": {}}')

        hostile.link.subscribe(f"$JS.{SITE}.API.>", nonsense)
        await hostile.link.flush()
        async with forwarding(hub) as forwarder:
            await eventually(lambda: "as no server does" in str(forwarder.status()["state"]))
