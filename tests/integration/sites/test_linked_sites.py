"""Two linked servers, one mesh: real servers, real nodes at both sites, a link that is cut."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.commands import Commands, said
from support.linked_sites import HUB, SITE, LinkedServers, linked_servers
from support.meshes import (
    READY,
    Load,
    add_model,
    as_found,
    close,
    digits,
    dismiss,
    good_request,
    mesh_of,
    split_digits,
)
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh, push
from shards.manifest import write_dir
from shards.split.split import split
from shards.zoo import digits_model
from swarm.link import jetstream
from swarm.sites.store import SiteStore, StoreLimits
from swarm.subjects import api
from swarm.transport.lane import find_streams

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

COUNT = 80  # requests in a cut and behind it
SILENCE = 3.0  # seconds: longer than a pull stands, and than a requester asks again for nothing


@dataclass
class Sites:
    """The servers, and a mesh whose nodes are at the hub, but for stage 2, which is at the site."""

    servers: LinkedServers
    mesh: LocalMesh

    @property
    def from_site(self) -> tuple[str, ...]:
        """Arguments of a node or command at the site that works in the hub's domain."""
        return ("--nats", self.servers.site.url, "--domain", HUB)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both_sites() -> AsyncIterator[Sites]:
    async with (
        linked_servers() as servers,
        mesh_of(name="default", url=servers.hub.url, shm=False) as local,
    ):
        made = Sites(servers, local)
        local.start("shard-2", "digits", *made.from_site)
        await add_model(local, split_digits(), "shard-1", "shard-3")
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def sites(both_sites: Sites) -> AsyncIterator[Sites]:
    """Left as they were found."""
    async with as_found(both_sites.mesh):
        yield both_sites


async def test_one_mesh_spans_a_hub_and_a_site_that_names_the_hubs_domain(sites: Sites) -> None:
    await good_request(sites.mesh.mesh)
    async with swarm.connect(sites.servers.site.url, domain=HUB, shm=False) as mesh:
        await good_request(mesh)
        streams = await find_streams(mesh.link, mesh.subjects, "digits", "1")
        assert streams == ["SWARM=default=digits=1=stage1=hub"]
    listed = await asyncio.to_thread(said, "model", "list", *sites.from_site, "--json")
    assert '"digits"' in listed.stdout


async def test_a_domain_that_does_not_exist_is_named_in_one_line(sites: Sites) -> None:
    there = ("--nats", sites.servers.site.url, "--domain", "hubb")
    # In a thread: the link runs in this loop.
    told = await asyncio.to_thread(said, "model", "list", *there)
    assert told.code == 1
    assert "no JetStream of domain 'hubb' answers (this server's own is 'edge1')" in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1


async def test_a_lane_that_a_linked_server_has_is_made_nowhere_else(
    sites: Sites, run: Commands, tmp_path: Path
) -> None:
    folder = str(tmp_path / "split")
    write_dir(folder, split_digits().manifest, split_digits().files)
    there = ("--nats", sites.servers.site.url)
    pushed = await asyncio.to_thread(said, "model", "push", folder, *there)
    assert pushed.code == 1
    assert "--domain hub" in pushed.stderr
    # Somebody with another version of the code may have pushed there all the same.
    async with swarm.connect(sites.servers.site.url) as mesh:
        await mesh.registry.push(split_digits().manifest.to_json(), split_digits().files)
        node = run.start(
            "nodes.cli.node", "--role", "shard-1", "--model", "digits", "--allow-unsigned", *there
        )
        assert await asyncio.to_thread(node.wait) == 1
        assert (
            node.stderr.strip()
            .splitlines()[-1]
            .endswith("start with --domain hub, or use another --mesh")
        )
        assert await find_streams(mesh.link, mesh.subjects, "digits", "1") == [
            "SWARM=default=digits=1=stage1=hub"
        ]
        for stream in ("KV_swarm-default-config", "OBJ_swarm-default-models"):
            await jetstream.call(mesh.link, api("STREAM.DELETE", stream))
    await good_request(sites.mesh.mesh)


async def test_across_a_cut_link_long_budgets_are_answered_and_short_ones_end(
    sites: Sites,
) -> None:
    image = {"image": digits()[0][:1]}
    async with swarm.connect(sites.servers.site.url, domain=HUB, shm=False) as mesh:
        await good_request(mesh)
        load = Load(mesh, rate=20, budget=60.0)
        await sites.servers.link.cut()
        patient = asyncio.create_task(load.run(COUNT))
        short = [await mesh.ask("digits", image, 0.3) for _ in range(8)]
        assert {result.status for result in short} <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
        await eventually(lambda: len(load.sent_at) == COUNT, "all are under way")
        await sites.servers.link.heal()
        # Its stage 2 is at the site: the pulls that stood at the hub were renewed.
        await patient
        load.check(COUNT)


async def test_a_link_that_falls_silent_holds_back_requests_and_loses_none(sites: Sites) -> None:
    async with swarm.connect(sites.servers.site.url, domain=HUB, shm=False) as mesh:
        await good_request(mesh)
        sites.servers.link.silence()
        patient = asyncio.create_task(good_request(mesh, budget=60.0))
        await asyncio.sleep(SILENCE)  # the fault itself: on a silent link nothing happens
        assert not patient.done()
        await sites.servers.link.heal()
        await patient


async def test_work_that_waits_is_submitted_while_the_link_is_cut_and_answered_behind_it(
    sites: Sites, tmp_path: Path
) -> None:
    images, logits = digits()
    np.savez(tmp_path / "x.npz", image=images[:1])
    there = ("--nats", sites.servers.site.url, "--json")

    async def command(*arguments: str) -> Any:
        done = await asyncio.to_thread(said, *arguments, *there)
        assert done.code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    async with swarm.connect(sites.servers.site.url) as mesh:
        await SiteStore(mesh.link, mesh.subjects, SITE).prepare(StoreLimits(max_bytes=1_000_000))
    gateway = sites.mesh.start("gateway", "", "--site", SITE)
    await sites.servers.link.cut()
    ask = ("submit", "digits", "--input", str(tmp_path / "x.npz"), "--agent", "robot-7")
    (tickets,) = await command(*ask, "--repeat", "20")
    assert [ticket["number"] for ticket in tickets["tickets"]] == list(range(1, 21))
    await sites.servers.link.heal()
    answers = await command("results", "--agent", "robot-7", "--count", "20")
    assert [answer["number"] for answer in answers] == list(range(1, 21))
    for answer, ticket in zip(answers, tickets["tickets"], strict=True):
        (output,) = answer["result"]["outputs"]
        assert close(np.array([output["data"]], np.float32), logits[:1])
        assert answer["result"]["id"] == ticket["id"]

    def forwarding() -> bool:
        said = sites.mesh.status_of(gateway)
        return said is not None and said["sites"][SITE]["state"] == "forwarding"

    await eventually(forwarding, "the gateway says that it forwards")
    (status,) = await command("site", "status")
    assert (status["waiting"], status["answered"], status["dropped"]) == (0, 20, 0)
    assert list(status["forwarders"].values()) == ["forwarding"]
    await dismiss(sites.mesh, [gateway])


async def test_an_edge_with_a_lighter_model_answers_degraded_while_its_site_is_cut_off(
    sites: Sites,
) -> None:
    images, logits = digits()
    model = split(digits_model(), name="digits-light", stages=2, lighter=digits_model())
    await push(sites.mesh, model.manifest.to_json(), model.files)
    source = ("--source", "digits", "--rate", "1", "--sink", "none", "--budget", "1000")
    edge = sites.mesh.start("edge", "digits-light", *sites.from_site, *source)
    shards = [sites.mesh.start(role, "digits-light") for role in ("shard-1", "shard-2")]
    await sites.mesh.ready(READY)
    async with swarm.connect(sites.servers.site.url, domain=HUB, shm=False) as mesh:

        async def first(good: Callable[[swarm.Result], bool]) -> swarm.Result:
            """The first such result. Until the link is seen to be cut, a budget may run out."""
            results: list[swarm.Result] = []

            async def is_good() -> bool:
                asked = {"image": images[:1]}
                results.append(await mesh.ask_service("digits-light", asked, 1.0))
                return good(results[-1])

            await eventually(is_good, "such a result", READY)
            return results[-1]

        def is_degraded(result: swarm.Result) -> bool:
            return result.status is swarm.Status.OK and result.degraded

        def is_whole(result: swarm.Result) -> bool:
            return result.status is swarm.Status.OK and not result.degraded

        await first(is_whole)
        await sites.servers.link.cut()
        result = await first(is_degraded)
        assert close(result.outputs["logits"], logits[:1])
        # Its power fails too: it starts again from what its disk has.
        before = edge.pid
        edge.signal(signal.SIGKILL)
        await eventually(lambda: edge.alive and edge.pid != before, "the edge starts again")
        result = await first(is_degraded)
        assert close(result.outputs["logits"], logits[:1])
        await sites.servers.link.heal()
        await first(is_whole)
    await dismiss(sites.mesh, [edge, *shards])
