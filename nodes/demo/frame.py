"""What the demos share: a mesh of separate processes on loopback, a pace, and lines of a story."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from nodes.console import err, guarded, out, unless
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from nodes.up.dashboard_process import dashboard_of
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess

MODEL = "digits"
PIPELINE = ("shard-1", "shard-2", "shard-3", "fallback")
LOCAL_BANDWIDTH = 1e6  # bytes a millisecond: loopback, so that compute decides the cuts


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
