"""`swarm top` as a whole: it hears a mesh, and shows it until a key or a signal ends it."""

from __future__ import annotations

import asyncio
import time

from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.top.app import TopApp
from nodes.watch.top.rollouts import RolloutWatch
from swarm.client import CONNECT_TIMEOUT
from swarm.link import LinkOptions
from swarm.link.denials import Denial


async def show(options: LinkOptions, mesh: str, stop: asyncio.Event) -> None:
    """Until `q` or `stop`. Raises `NotConnected`, `NotAdmitted` before anything is drawn, and
    `PermissionDenied` where this user may not hear statuses; later losses are shown."""
    state, news, urgent = PageState(mesh), asyncio.Event(), asyncio.Event()
    source = MeshSource(options, state, news, urgent)
    link = source.link
    rollouts = RolloutWatch(link, source.subjects, source.registry, state.model_names)
    app = TopApp(state, urgent, lambda: rollouts.lines(time.monotonic()))
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(source.run(), name="the mesh")]
        try:
            await link.ready(CONNECT_TIMEOUT)
            if not link.grants.may_subscribe(source.subjects.status_all):
                raise Denial(False, source.subjects.status_all).error()
            work.append(group.create_task(rollouts.run(), name="rollouts"))
            work.append(group.create_task(_end_with(stop, app), name="end of the page"))
            await app.run_async()
        finally:
            for task in work:
                task.cancel()
            await link.close()


async def _end_with(stop: asyncio.Event, app: TopApp) -> None:
    await stop.wait()
    app.exit()
