"""The dashboard as a whole: it hears a mesh, and serves the page."""

from __future__ import annotations

import asyncio
import socket

from nodes.watch.dashboard.acts import Acts
from nodes.watch.dashboard.feed import DashboardFeed
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.serve import DashboardPlace, serve
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.dashboard.web import application
from swarm.link import Link, LinkOptions
from swarm.models.registry import Registry
from swarm.subjects import Subjects


class Dashboard:
    """`run()` serves until it is told to stop. token: who has it may act; "" where nobody may."""

    def __init__(self, link: LinkOptions, mesh: str) -> None:
        self._feed = DashboardFeed(PageState(mesh))
        self._source = MeshSource(link, self._feed.state, self._feed.news, self._feed.urgent)
        self._acts: Acts | None = None
        self.token = ""

    @property
    def link(self) -> Link:
        return self._source.link

    @property
    def subjects(self) -> Subjects:
        return self._source.subjects

    def allow_acts(self, registry: Registry, token: str) -> None:
        """Let whoever has the token act. registry: signs as an operator."""
        self._acts = Acts(self.link, self.subjects, registry)
        self.token = token

    async def run(self, place: DashboardPlace, sock: socket.socket, stop: asyncio.Event) -> None:
        """Hear the mesh and serve the page, until `stop` is set. Raises `InvalidArgument`."""
        app = application(self._feed, self._acts, self.token, place.names)
        async with asyncio.TaskGroup() as group:
            feed = group.create_task(self._feed.run(), name="feed")
            work = [
                feed,
                group.create_task(self._source.run(), name="the mesh"),
                # Open streams end first: the web server would wait for them.
                group.create_task(_end_with(stop, feed), name="end of the feed"),
            ]
            try:
                await serve(app, place, sock, stop)
            finally:
                for task in work:
                    task.cancel()
                await self.link.close()


async def _end_with(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    await stop.wait()
    task.cancel()
