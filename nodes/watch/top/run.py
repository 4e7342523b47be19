"""`swarm top` as a whole: it hears a mesh, and shows it until a key or a signal ends it."""

from __future__ import annotations

import asyncio
import time

from nodes.features import features
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.top.app import TopApp
from swarm.client import CONNECT_TIMEOUT
from swarm.link import LinkOptions
from swarm.link.grants import Denial


async def show(options: LinkOptions, mesh: str, stop: asyncio.Event) -> None:
    """Until `q` or `stop`. Raises `NotConnected`, `NotAdmitted` before anything is drawn, and
    `PermissionDenied` where this user may not hear statuses; later losses are shown."""
    state, news, urgent = PageState(mesh), asyncio.Event(), asyncio.Event()
    source = MeshSource(options, state, news, urgent)
    link = source.link
    told = [each.model_lines(source, state.model_names) for each in features() if each.model_lines]

    def lines() -> dict[str, str]:
        now = time.monotonic()
        return {model: line for each in told for model, line in each.lines(now).items()}

    app = TopApp(state, urgent, lines)
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(source.run(), name="the mesh")]
        try:
            await link.ready(CONNECT_TIMEOUT)
            if not link.grants.may_subscribe(source.subjects.status_all):
                raise Denial(False, source.subjects.status_all).error()
            work += [group.create_task(each.run(), name="lines of models") for each in told]
            work.append(group.create_task(_end_with(stop, app), name="end of the page"))
            await app.run_async()
        finally:
            for task in work:
                task.cancel()
            await link.close()


async def _end_with(stop: asyncio.Event, app: TopApp) -> None:
    await stop.wait()
    app.exit()
