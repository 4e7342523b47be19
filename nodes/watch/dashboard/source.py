"""Where the view comes from: the mesh, as a NATS client hears it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from nodes.watch.dashboard.page_state import PageState
from swarm.errors import SwarmError
from swarm.fleet.bound_names import is_bound
from swarm.fleet.events import last_events
from swarm.fleet.service import ask_fleet, speaks_seldom
from swarm.fleet.status_listener import request_statuses
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.models.registry import Registry
from swarm.models.serving_versions import ServingVersions
from swarm.subjects import Subjects

log = logging.getLogger("swarm.dashboard")

TICK = 1.0  # seconds
ASK_EVERY = 30.0  # seconds; events that were lost are made good by it


class MeshSource:
    """Hears a mesh: statuses, events, results, the server, desired state.

    Goes on for ever: where no server can be reached the view says so, and the link tries again.
    What this user may not hear is left out. news: an event that is set at each change; urgent: one
    that is set where people should see it at once.
    """

    def __init__(
        self,
        options: LinkOptions,
        state: PageState,
        news: asyncio.Event,
        urgent: asyncio.Event,
    ) -> None:
        self.state = state
        self.subjects = Subjects(state.mesh, by_user=bool(options.connects_as))
        self.link = Link(options)
        self.registry = Registry(self.link, self.subjects)
        self._news = news
        self._urgent = urgent
        self._ask = asyncio.Event()  # for the view that nodes have
        self._read: set[str] = set()  # models whose desired state was looked for
        self._serving = ServingVersions(
            self.link, self.subjects, self.registry, state.fleet, self._read_desired
        )
        self.link.on_up.append(self._went_up)
        self.link.on_down.append(self._went_down)

    async def run(self) -> None:
        """Until cancelled."""
        link, subjects = self.link, self.subjects
        link.subscribe(subjects.status_all, self._status)
        link.subscribe(subjects.events_all, self._event)
        link.subscribe(subjects.server, self._server)
        link.subscribe(f"{subjects.root}.results.*", self._result)
        async with asyncio.TaskGroup() as group:
            group.create_task(link.run(), name="link")
            group.create_task(self._tick(), name="tick")
            group.create_task(self._ask_fleet(), name="fleet")
            group.create_task(self._serving.run(), name="desired state")

    # --- what comes -------------------------------------------------------------------------

    def _status(self, message: LinkMessage) -> None:
        if message.headers is not None:
            return  # an answer of the server, which somebody aimed here
        if self.state.take_status(message.subject, message.data, time.monotonic()):
            self._urgent.set()
        self._news.set()

    def _event(self, message: LinkMessage) -> None:
        if self.state.take_event(message.subject, message.data, time.monotonic()):
            self._urgent.set()
        self._news.set()

    def _server(self, message: LinkMessage) -> None:
        self.state.take_server(message.data)

    def _result(self, message: LinkMessage) -> None:
        self.state.take_result(message.data, time.monotonic())

    # --- the connection ---------------------------------------------------------------------

    def _went_up(self) -> None:
        self._tell_link()
        self._ask.set()

    def _went_down(self) -> None:
        self._tell_link()

    def _tell_link(self) -> None:
        link = self.link
        url = link.url.netloc.rpartition("@")[2] if link.url is not None else ""
        error = "" if link.connected else str(link.refusal or link.last_error)
        before = self.state.link
        self.state.take_link(link.connected, url, error, time.monotonic())
        if before != self.state.link:
            self._urgent.set()
            self._news.set()

    # --- periodic -----------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._tell_link()
            self.state.tick(time.monotonic())
            if set(self.state.model_names()) - self._read:
                self._serving.look()
            self._news.set()

    async def _ask_fleet(self) -> None:
        """Ask for the whole view and past events after each connection, and now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY):
                    await self._ask.wait()
            came_up = self._ask.is_set()
            self._ask.clear()
            if self.link.connected:
                self.state.fleet.bound = is_bound(self.link.grants, self.subjects)
                try:
                    if self.link.grants.may_publish(self.subjects.fleet):
                        await ask_fleet(self.link, self.subjects, self._page)
                    if came_up and speaks_seldom(self.state.fleet, time.monotonic()):
                        request_statuses(self.link, self.subjects)
                    self.state.take_past(await last_events(self.link, self.subjects) or ())
                except SwarmError as error:  # statuses and events come all the same
                    log.debug("no view of the fleet: %s", error)
                self._news.set()

    def _page(self, page: Mapping[str, Any]) -> None:
        self.state.take_page(page, time.monotonic())
        self._news.set()

    def _read_desired(self) -> None:
        """Which versions serve was read."""
        self._read |= set(self.state.model_names())
        for model, document in self._serving.desired.items():
            self.state.take_desired(model, document)
        self.state.take_serving(self._serving.stages, self._serving.unlisted)
        self._news.set()
