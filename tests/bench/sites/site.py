"""A site that submits while its link is cut: two servers, a mesh at the hub, robots at the site."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from support.linked_sites import SITE, LinkedServers, linked_servers
from support.meshes import close, digits, mesh_of, split_digits

import swarm
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark
from bench.report.tables import facts
from nodes.console import out
from swarm.sites.store import SiteStore, StoreLimits


@dataclass(frozen=True, slots=True)
class Submitted:
    """A stored request. took: seconds of `submit`. at: when it was stored; number: its ticket's."""

    number: int
    at: float
    took: float


@dataclass(frozen=True, slots=True)
class Received:
    """An answer that was read. right: it is the whole model's."""

    number: int
    at: float
    right: bool


def site_figures(
    submitted: Sequence[Submitted],
    received: Mapping[str, Sequence[Received]],
    cut_at: float,
    healed_at: float,
) -> dict[str, Any]:
    """received: by agent. Times are seconds of one clock."""
    wanted = {each.number for each in submitted}
    times = Counter(each.number for answers in received.values() for each in answers)
    answers = [each for each_agent in received.values() for each in each_agent]
    before = {each.number for each in submitted if each.at <= healed_at}
    behind = [each.at - healed_at for each in answers if each.at > healed_at]
    late = [each.at - healed_at for each in answers if each.number in before]
    cut = [each.took for each in submitted if cut_at < each.at <= healed_at]
    linked = [each.took for each in submitted if not cut_at < each.at <= healed_at]
    return {
        "requests": len(submitted),
        "submitted_while_cut": len(cut),
        "lost": len(wanted - times.keys()),
        "twice": sum(count - 1 for count in times.values()),
        "wrong": sum(not each.right for each in answers),
        "out_of_order": sum(_disorder([each.number for each in a]) for a in received.values()),
        "answered_while_cut": sum(cut_at + 1 < each.at < healed_at for each in answers),
        "first_answer_after_s": round(min(behind, default=-1.0), 3),
        "caught_up_after_s": round(max(late, default=-1.0), 3),
        "submit_cut_p50_ms": round(percentile(cut, 0.5) * 1e3, 3),
        "submit_cut_p99_ms": round(percentile(cut, 0.99) * 1e3, 3),
        "submit_linked_p50_ms": round(percentile(linked, 0.5) * 1e3, 3),
    }


def _disorder(numbers: Sequence[int]) -> int:
    return sum(later <= earlier for earlier, later in pairwise(numbers))


def misses(doc: Mapping[str, Any]) -> list[str]:
    """Why a run has not passed, for people."""
    return [
        f"{doc[name]} {name.replace('_', ' ')}"
        for name in ("lost", "twice", "wrong", "out_of_order")
        if doc[name]
    ]


STAGES = 3
SHARE_CUT = 0.5  # of the requests are submitted while the link is cut
RATE_LINKED = 100.0  # requests a second before and behind the cut
UNTIL_ANSWERED = 300.0  # seconds behind the last submission
LOOK_EVERY = 0.05  # seconds


@dataclass(frozen=True)
class SitePlan:
    """cut: seconds for which the link is away. requests: in all. agents: who submit, in turn.
    silent: the link is silent instead of cut. flap: instead of one cut, the link is cut for one
    second of each five."""

    cut: float = 60.0
    requests: int = 1000
    agents: int = 4
    silent: bool = False
    flap: bool = False


async def play(plan: SitePlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `Unavailable`."""
    roles = [f"shard-{stage}" for stage in range(1, STAGES + 1)]
    async with (
        linked_servers() as servers,
        mesh_of(split_digits(), *roles, url=servers.hub.url, name="default") as local,
    ):
        for _ in range(2):  # one stands by
            local.start("gateway", "", "--site", SITE)
        await local.ready()
        progress(f"{plan.requests} requests, a cut of {plan.cut:g} s …")
        submitted, received, cut_at, healed_at = await _story(plan, servers)
    return {
        "cut_s": plan.cut,
        "link": "flapping" if plan.flap else "silent" if plan.silent else "cut",
        "agents": plan.agents,
        **site_figures(submitted, received, cut_at, healed_at),
    }


async def _story(
    plan: SitePlan, servers: LinkedServers
) -> tuple[list[Submitted], dict[str, list[Received]], float, float]:
    images, logits = digits()
    agents = [f"robot-{number}" for number in range(plan.agents)]
    during = int(plan.requests * SHARE_CUT)
    around = plan.requests - during
    submitted: list[Submitted] = []
    indices: dict[int, int] = {}  # which image, by number
    received: dict[str, list[Received]] = {agent: [] for agent in agents}
    async with swarm.connect(servers.site.url) as site:
        await SiteStore(site.link, site.subjects, SITE).prepare(StoreLimits())

        async def submit(count: int, rate: float) -> None:
            async for _ in paced(rate, count):
                index = len(submitted)
                image = {"image": images[index % len(images)][None]}
                sent = time.monotonic()
                ticket = await site.submit("digits", image, agent=agents[index % plan.agents])
                indices[ticket.number] = index
                now = time.monotonic()
                submitted.append(Submitted(ticket.number, now, now - sent))

        async def read(agent: str) -> None:
            async for answer in site.results(agent):
                expected = logits[indices.get(answer.number, -1) % len(logits)][None]
                given = answer.result.outputs.get("logits")
                right = given is not None and close(given, expected)
                received[agent].append(Received(answer.number, time.monotonic(), right))

        readers = [asyncio.create_task(read(agent)) for agent in agents]
        try:
            await submit(around // 2, RATE_LINKED)
            cut_at = time.monotonic()
            faults = asyncio.create_task(_cut(plan, servers))
            await submit(during, during / plan.cut)
            healed_at = await faults
            await submit(around - around // 2, RATE_LINKED)
            await _until_all(readers, received, plan.requests)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
    return submitted, received, cut_at, healed_at


async def _cut(plan: SitePlan, servers: LinkedServers) -> float:
    """Cut the link as planned; returns when it was whole again."""
    link, ends = servers.link, time.monotonic() + plan.cut
    if plan.flap:
        while (left := ends - time.monotonic()) > 0:
            await link.cut()
            await asyncio.sleep(min(1.0, left))
            await link.heal()
            await asyncio.sleep(max(0.0, min(4.0, ends - time.monotonic())))
        return time.monotonic()
    if plan.silent:
        link.silence()
    else:
        await link.cut()
    await asyncio.sleep(plan.cut)
    await link.heal()
    return time.monotonic()


async def _until_all(
    readers: list[asyncio.Task[None]], received: dict[str, list[Received]], count: int
) -> None:
    """Until so many answers are there, or `UNTIL_ANSWERED`; a reader that fails is raised."""
    deadline = time.monotonic() + UNTIL_ANSWERED
    while sum(map(len, received.values())) < count and time.monotonic() < deadline:
        done, _ = await asyncio.wait(readers, timeout=LOOK_EVERY)
        for reader in done:
            reader.result()
    await asyncio.sleep(1.0)  # for one that comes twice


SITE_CUT = Benchmark("site", play, lambda document: out.print(facts(document)), misses=misses)
