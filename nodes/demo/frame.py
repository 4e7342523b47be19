"""What the demos share: a mesh of separate processes on loopback, a pace, and lines of a story."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.console import err, guarded, out, print_json, unless
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from nodes.up.dashboard_process import dashboard_of
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess

MODEL = "digits"
PIPELINE = ("shard-1", "shard-2", "shard-3", "fallback")


@dataclass
class Frame:
    """Of one run of a demo. seconds: that its story takes. live: whether a picture is drawn
    meanwhile, which shows the story's lines too. page: whether a dashboard shows the mesh. began:
    when the story did, on the event loop's clock. code: the exit code, once it is known."""

    seconds: float
    live: bool
    page: bool
    began: float = 0.0
    code: int = 130

    def tell(self, text: str) -> None:
        """Tell people what the demo does next."""
        err.print(f"demo: {text}")

    @contextlib.asynccontextmanager
    async def shown(self, local: LocalMesh, ready_within: float) -> AsyncIterator[None]:
        """Wait until all nodes are ready, and show their mesh on a page if there is to be one."""
        await local.ready(ready_within)
        async with contextlib.AsyncExitStack() as stack:
            if self.page:
                self.tell(f"watch it at {await stack.enter_async_context(dashboard_of(local))}")
            yield

    async def until_part(self, part: float) -> None:
        """Wait for this part of the story's time, 0 to 1."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self.began + part * self.seconds - now))


def kill(node: NodeProcess) -> None:
    """SIGKILL; the supervisor leaves the restart to the story."""
    node.wanted = False
    node.signal(signal.SIGKILL)


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
    story: Callable[[Frame], Coroutine[Any, Any, None]],
    seconds: float,
    *,
    as_json: bool,
    page: bool,
    level: int,
) -> int:
    """Run a demo until its end, or until Ctrl-C; returns its exit code. level: of log lines."""
    set_up_logging(LogForm())
    logging.getLogger("swarm").setLevel(level)

    async def main() -> int:
        frame = Frame(seconds, live=not as_json and out.is_terminal, page=page)
        await unless(stop_on_signals(), story(frame))
        return frame.code

    return guarded(main, as_json)
