"""A site that submits while its link is cut: two servers, a mesh at the hub, robots at the site."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import swarm
from bench.faults.site.figures import Came, Submitted, site_figures
from bench.faults.site.linked_servers import SITE, LinkedServers, linked_servers
from bench.report.machine import machine
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.runtimes.ort import OrtRuntime
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model
from swarm.site.store import Limits, SiteStore

STAGES = 3
SHARE_CUT = 0.5  # of the requests are submitted while the link is cut
RATE_LINKED = 100.0  # requests a second before and behind the cut
UNTIL_ANSWERED = 300.0  # seconds behind the last submission
LOOK_EVERY = 0.05  # seconds
TOLERANCE = 1e-4


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


@dataclass(frozen=True)
class _Digits:
    model: SplitResult
    images: np.ndarray
    logits: list[np.ndarray]

    def is_right(self, index: int, result: swarm.Result) -> bool:
        expected = self.logits[index % len(self.logits)]
        found = result.outputs.get("logits")
        return found is not None and bool(np.allclose(found, expected, atol=TOLERANCE))


async def play(plan: SitePlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `Unavailable`."""
    digits = await asyncio.to_thread(_make)
    async with linked_servers() as servers, local_mesh(url=servers.hub.url) as local:
        await push(local, digits.model.manifest.to_json(), digits.model.files)
        for stage in range(1, STAGES + 1):
            local.start(f"shard-{stage}", "digits")
        for _ in range(2):  # one stands by
            local.start("gateway", "", "--site", SITE)
        await local.ready()
        progress(f"{plan.requests} requests, a cut of {plan.cut:g} s …")
        submitted, came, cut_at, healed_at = await _story(plan, servers, local, digits)
    return {
        "v": 1,
        "bench": "site",
        "machine": machine(),
        "cut_s": plan.cut,
        "link": "flapping" if plan.flap else "silent" if plan.silent else "cut",
        "agents": plan.agents,
        **site_figures(submitted, came, cut_at, healed_at),
    }


async def _story(
    plan: SitePlan, servers: LinkedServers, local: LocalMesh, digits: _Digits
) -> tuple[list[Submitted], dict[str, list[Came]], float, float]:
    agents = [f"robot-{number}" for number in range(plan.agents)]
    during = int(plan.requests * SHARE_CUT)
    around = plan.requests - during
    submitted: list[Submitted] = []
    indices: dict[int, int] = {}  # which image, by number
    came: dict[str, list[Came]] = {agent: [] for agent in agents}
    async with swarm.connect(servers.site.url) as site:
        await SiteStore(site.link, site.subjects, SITE).prepare(Limits())

        async def submit(count: int, rate: float) -> None:
            began = time.monotonic()
            for turn in range(count):
                await asyncio.sleep(max(0.0, began + turn / rate - time.monotonic()))
                index = len(submitted)
                image = {"image": digits.images[index % len(digits.images)][None]}
                sent = time.monotonic()
                ticket = await site.submit("digits", image, agent=agents[index % plan.agents])
                indices[ticket.number] = index
                now = time.monotonic()
                submitted.append(Submitted(ticket.number, now, now - sent))

        async def read(agent: str) -> None:
            async for answer in site.results(agent):
                right = digits.is_right(indices.get(answer.number, -1), answer.result)
                came[agent].append(Came(answer.number, time.monotonic(), right))

        readers = [asyncio.create_task(read(agent)) for agent in agents]
        try:
            await submit(around // 2, RATE_LINKED)
            cut_at = time.monotonic()
            faults = asyncio.create_task(_cut(plan, servers))
            await submit(during, during / plan.cut)
            healed_at = await faults
            await submit(around - around // 2, RATE_LINKED)
            await _until_all(readers, came, plan.requests)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
    return submitted, came, cut_at, healed_at


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
    readers: list[asyncio.Task[None]], came: dict[str, list[Came]], count: int
) -> None:
    """Until so many answers came, or `UNTIL_ANSWERED`; a reader that fails is raised."""
    deadline = time.monotonic() + UNTIL_ANSWERED
    while sum(map(len, came.values())) < count and time.monotonic() < deadline:
        done, _ = await asyncio.wait(readers, timeout=LOOK_EVERY)
        for reader in done:
            reader.result()
    await asyncio.sleep(1.0)  # for one that comes twice


def _make() -> _Digits:
    data = digits_model()
    model = split(data, name="digits", stages=STAGES)
    images = digits_heldout()[0]
    whole = OrtRuntime(data)
    try:
        logits = [whole.run({"image": image[None]})["logits"] for image in images]
    finally:
        whole.close()
    return _Digits(model, images, logits)
