"""What stories of `swarm demo` share: a mesh of separate processes on loopback, a pace, lines that
are told, a kill and a return, a report."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.console import err, guarded, out, print_json, unless
from nodes.demo.record import TakeoverRecord
from nodes.event_loop import stop_on_signals
from nodes.feature import Given
from nodes.logs import LogForm, set_up_logging
from nodes.up.companion import Companion
from nodes.up.mesh import LocalMesh, push
from nodes.up.supervisor import NodeProcess
from shards.manifest import Manifest
from shards.split.split import SplitResult

MODEL = "digits"
PIPELINE = ("shard-1", "shard-2", "shard-3", "fallback")
VICTIM = "shard-2"


KILL_AT, RESTART_AT = 0.4, 0.6  # parts of the stream's time
RETURN_WITHIN = 15.0  # seconds that the stream goes on while the victim is not back yet

Step = tuple[float, Callable[[NodeProcess], Awaitable[None]]]  # the part of the time, and the work


@dataclass(frozen=True)
class StoryOptions:
    """How a story was asked for. seconds, rate: None where the story has its own. companions: what
    features do beside it. given: the options of features."""

    seconds: float | None
    rate: float | None
    as_json: bool
    companions: Sequence[Companion]
    given: Given


@dataclass
class StoryRun:
    """Of one run of a story. seconds: that it takes. live: whether a picture is drawn meanwhile,
    which shows the story's lines too. began: when the story did, on the event loop's clock. code:
    the exit code, once it is known."""

    seconds: float
    live: bool
    companions: Sequence[Companion]
    began: float = 0.0
    code: int = 130

    def tell(self, text: str) -> None:
        """Tell people what the demo does next."""
        err.print(f"demo: {text}")

    async def shown(self, local: LocalMesh, manifest: Manifest, ready_within: float) -> None:
        """Wait until all nodes are ready, and say where people see them."""
        await local.ready(ready_within)
        for each in self.companions:
            await each.opened(local, manifest.model)
            for title, line in each.lines(local, manifest):
                self.tell(f"{title} {line}")

    async def until_part(self, part: float) -> None:
        """Wait for this part of the story's time, 0 to 1."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self.began + part * self.seconds - now))


async def start_pipeline(local: LocalMesh, result: SplitResult, *flags: str) -> None:
    """Push a model that was just split into three, and start a node for each shard and a fallback.
    Raises `SwarmError`."""
    await push(local, result.manifest.to_json(), result.files)
    for role in PIPELINE:
        local.start(role, result.manifest.model, *flags)


def node_of(local: LocalMesh, role: str) -> NodeProcess:
    """The first node of a role."""
    return next(node for node in local.supervisor.nodes if node.role == role)


def kill(node: NodeProcess) -> None:
    """SIGKILL; the supervisor leaves the restart to the story."""
    node.wanted = False
    node.signal(signal.SIGKILL)


async def kill_and_return(
    frame: StoryRun,
    local: LocalMesh,
    seen: TakeoverRecord,
    say: Callable[[str], None],
    more: Sequence[Step] = (),
) -> None:
    """Kill shard-2 and start it again, as the stream goes on; ends when its stage is its own
    again, or is not within `RETURN_WITHIN`. more: steps at other parts of the time."""
    victim = node_of(local, VICTIM)

    async def end(victim: NodeProcess) -> None:
        say(f"{VICTIM} (pid {victim.pid}) gets SIGKILL")
        seen.killed(str((local.status_of(victim) or {}).get("node", "")))
        kill(victim)

    async def begin(victim: NodeProcess) -> None:
        say(f"{VICTIM} starts again")
        seen.restarted()
        victim.start()
        victim.wanted = True

    frame.began = asyncio.get_running_loop().time()
    steps = [(KILL_AT, end), (RESTART_AT, begin), *more]
    for part, step in sorted(steps, key=lambda step: step[0]):
        await frame.until_part(part)
        await step(victim)
    await frame.until_part(1.0)
    await local.until(lambda: seen.returned_at > 0, RETURN_WITHIN)


async def last_status(local: LocalMesh, edge: NodeProcess) -> dict[str, Any]:
    """Let an edge finish; returns its own last status, or an empty one where it does not end."""
    edge.signal(signal.SIGTERM)
    left = await local.until(lambda: (local.status_of(edge) or {}).get("state") == "left", 10.0)
    return (local.status_of(edge) or {}) if left else {}


def report(
    doc: Mapping[str, Any],
    broken: Sequence[str],
    kept: str,
    then: str,
    *,
    as_json: bool,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Print how a demo ended; returns its exit code: 1 where a promise was broken.

    doc: the figures. broken: a sentence for each broken promise; `kept` stands in their place.
    then: what to type next. more: for programs alone.
    """
    if as_json:
        print_json({**doc, **(more or {}), "broken": list(broken)})
        return 1 if broken else 0
    for key, value in doc.items():
        out.print(f"  {key.replace('_', ' '):<28}{json.dumps(value)}", highlight=False)
    for sentence in broken:
        out.print(f"[bold red]broken:[/] {sentence}")
    if not broken:
        out.print(f"[bold green]{kept}[/]")
    out.print(f"next: {then}")
    return 1 if broken else 0


def run_story(
    story: Callable[[StoryRun], Coroutine[Any, Any, None]],
    asked: StoryOptions,
    seconds: float,
    level: int = logging.ERROR,
) -> int:
    """Run a demo until its end, or until Ctrl-C; returns its exit code. seconds: where none are
    asked for. level: of log lines."""
    set_up_logging(LogForm())
    logging.getLogger("swarm").setLevel(level)

    async def main() -> int:
        live = not asked.as_json and out.is_terminal
        frame = StoryRun(asked.seconds or seconds, live, asked.companions)
        await unless(stop_on_signals(), story(frame))
        return frame.code

    return guarded(main, asked.as_json)
