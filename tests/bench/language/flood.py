"""One client that opens 500 chats at once, all the time, and what another client's tokens cost
meanwhile; by turns with the flood away.

    python -m bench.language.flood URL MESH

is the client that floods, while its last line on standard input is `on`. A refused chat is asked
again a second later.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from support.meshes import mesh_of
from support.talker import HELLO, TALKER, talker

import swarm
from bench.report.figure import Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from nodes.console import out
from swarm.errors import SwarmError
from swarm.language.request import GenerateRequest
from swarm.link import LinkMessage

SHARDS = ("shard-1", "shard-2", "shard-3")
AGENT, CHATS, AGAIN = "flood", 500, 1.0  # seconds until a refused chat is asked again
ALONE, FLOODED = "alone", "with the flood"
SETTLES = 0.5  # seconds until the flood has come, or gone
MOST_RATIO = 2.0  # of the other client's p99 between tokens, with the flood


@dataclass(frozen=True)
class FloodPlan:
    """sessions: of the other client, at a time. tokens: of each of its answers. seconds: of a
    slice. chats: of the flood, at a time."""

    sessions: int = 2
    tokens: int = 200
    seconds: float = 4.0
    chats: int = CHATS
    rounds: int = 5


@dataclass(slots=True)
class Slice:
    """Of the other client: seconds to first tokens and between tokens; answers that failed."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    failed: int = 0

    def figures(self) -> dict[str, float]:
        return {
            "token_p50_ms": 1e3 * percentile(self.between, 0.5),
            "token_p99_ms": 1e3 * percentile(self.between, 0.99),
            "first_p50_ms": 1e3 * percentile(self.first, 0.5),
            "first_p99_ms": 1e3 * percentile(self.first, 0.99),
        }


async def of_others(mesh: swarm.Mesh, plan: FloodPlan) -> Slice:
    """The other client: so many chats at a time, one after the other."""
    found, until = Slice(), time.perf_counter() + plan.seconds

    async def one() -> None:
        while (last := time.perf_counter()) < until:
            begun = False
            try:
                async for _ in mesh.chat(TALKER, HELLO, max_tokens=plan.tokens):
                    now = time.perf_counter()
                    (found.between if begun else found.first).append(now - last)
                    begun, last = True, now
            except SwarmError:
                found.failed += 1

    await asyncio.gather(*(one() for _ in range(plan.sessions)))
    return found


async def measure(plan: FloodPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench generate --flood`. Raises the error of a start."""
    found: dict[str, list[Slice]] = {ALONE: [], FLOODED: []}
    async with mesh_of(talker(3), *SHARDS) as local:
        command = [sys.executable, "-m", "bench.language.flood", local.url, local.name]
        command.append(str(plan.chats))
        flood = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert flood.stdin is not None
        assert flood.stdout is not None
        other = swarm.connect(local.url, local.name, agent="other")
        try:
            async with other as mesh:
                await of_others(mesh, FloodPlan(seconds=0.5))  # to be warm
                for number, name in by_turns(plan.rounds, list(found)):
                    progress(f"round {number} of {plan.rounds}: {name}")
                    flood.stdin.write(b"on\n" if name == FLOODED else b"off\n")
                    await asyncio.sleep(SETTLES)
                    found[name].append(await of_others(mesh, plan))
            flood.stdin.write(b"end\n")
            async with asyncio.timeout(30.0):
                told = json.loads(await flood.stdout.readline())
        finally:
            if flood.returncode is None:
                flood.kill()
            await flood.wait()
    figures = {
        f"{name}/{key}": Figure.of([each.figures()[key] for each in slices], "ms")
        for name, slices in found.items()
        for key in slices[0].figures()
    }
    for key in ("token_p99", "first_p99"):
        ratios = [
            flooded.figures()[f"{key}_ms"] / alone.figures()[f"{key}_ms"]
            for alone, flooded in zip(found[ALONE], found[FLOODED], strict=True)
        ]
        figures[f"{key}_ratio"] = Figure.of(ratios, "x", floor=True)
    return {
        "chats": plan.chats,
        "failed": {name: sum(each.failed for each in slices) for name, slices in found.items()},
        "flood": told,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def show(document: dict[str, Any]) -> None:
    """One table, and what became of the flood."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    headings = ("ms a token", "p99", "first", "p99", "failed")
    table = new_table("another client's chats", "", *headings)
    for name in (ALONE, FLOODED):
        keys = ("token_p50_ms", "token_p99_ms", "first_p50_ms", "first_p99_ms")
        cells = [f"{figures[f'{name}/{key}'].value:.3g}" for key in keys]
        table.add_row(name, *cells, str(document["failed"][name]))
    out.print(table)
    ratios = (f"{key} {figures[f'{key}_ratio']}" for key in ("token_p99", "first_p99"))
    out.print(f"ratios: {', '.join(ratios)}; the flood: {document['flood']}")


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that are missed."""
    found = [
        f"{name}: {count} answers of the other client failed"
        for name, count in document["failed"].items()
        if count
    ]
    ratio = document["figures"]["token_p99_ratio"]["value"]
    if ratio > MOST_RATIO:
        found.append(f"with the flood p99 is {ratio} times as long, of {MOST_RATIO} at most")
    return found


FLOOD = Benchmark("generate-flood", measure, show, misses=misses)


class Flood:
    """The client that floods, by raw messages: it costs its machine little."""

    def __init__(self, mesh: swarm.Mesh, chats: int) -> None:
        text = "Tell me a story of a robot. " * 40
        messages = ({"role": "user", "content": text[:400]},)
        request = GenerateRequest(messages=messages, max_tokens=64, agent=AGENT)
        self._data = request.encode()
        self._mesh, self._chats = mesh, chats
        self._subject = mesh.subjects.under("generate", model=TALKER)
        self.counts: Counter[str] = Counter()
        self.on = False

    def ask(self) -> None:
        """One more chat."""
        link = self._mesh.link

        def heard(message: LinkMessage) -> None:
            if message.data and b"error" not in message.data:
                self.counts["messages"] += 1
                return
            link.forget(reply)
            self.counts["refused" if message.data else "answered"] += 1
            if self.on:
                loop = asyncio.get_running_loop()
                loop.call_later(AGAIN if message.data else 0.0, self.ask)

        if self.on:
            reply = link.expect(heard)
            link.publish(self._subject, self._data, reply)

    def start(self) -> None:
        """All chats at once."""
        self.on = True
        for _ in range(self._chats):
            self.ask()


async def main(url: str, name: str, chats: int) -> None:
    async with swarm.connect(url, name, agent=AGENT) as mesh:
        flood = Flood(mesh, chats)
        while (line := await asyncio.to_thread(sys.stdin.readline)) not in ("end\n", ""):
            if line == "on\n":
                flood.start()
            else:
                flood.on = False
        print(json.dumps(flood.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
