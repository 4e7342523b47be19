"""A node's part in keeping what the mesh has at its server: noticed, told, mended.

One node of a version looks at all of its lanes where nodes may make streams, by rendezvous over the
living ones; where they may not, one node of each stage looks at the lane of that stage, which is
all that it may see. One node of the mesh looks at what is the whole mesh's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

from nodes.connection.connection import Connection
from nodes.versions.serving import Serving
from nodes.versions.upkeep import (
    Flaw,
    common_of,
    given_back_of,
    lanes_of,
    look,
    mended,
    older_stream_is_there,
    store_flaws,
)
from swarm.errors import SwarmError
from swarm.link.kept_stream import KeptStream
from swarm.periodic import BEAT, beat
from swarm.routing.rendezvous import rendezvous
from swarm.subjects import ANY
from swarm.transport.lane import Lane, lane_title
from swarm.transport.source import StageSource

log = logging.getLogger("swarm.node")

LOOK_EVERY = 10 * BEAT  # seconds
PROBE_EVERY = 10.0  # seconds between messages that tell whether lanes in files store any
GIVE_BACK_EVERY = 10.0  # seconds between looks for lanes that nobody needs
MADE_AGAIN = "it was missing on the server, and was made again; what waited in it is asked again"


class Upkeep:
    """`run()` acts until cancelled. flaws: those that this node knows of. on_change: is called when
    they have changed."""

    def __init__(
        self,
        connection: Connection,
        servings: Callable[[], list[Serving]],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.flaws: list[Flaw] = []
        self.on_change = on_change
        self._mesh = connection.mesh
        self._config = connection.config
        self._peers = connection.peers
        self._tell = connection.events.tell
        self._servings = servings
        self._looked_at: set[str] = set()  # streams, at the last look
        self._looks_at: set[str] = set()  # at this one
        self._made_again: WeakKeyDictionary[Lane, int] = WeakKeyDictionary()
        self._gave_back = 0.0
        self._probed = 0.0
        self._stores_nothing: list[Flaw] = []  # as of then
        self._told: dict[str, float] = {}  # when a stream was told to be mended

    async def run(self) -> None:
        """Look, tell and mend, until cancelled."""
        while True:
            await beat(LOOK_EVERY)
            try:
                found = await self._look()
                if time.monotonic() - self._gave_back >= GIVE_BACK_EVERY:
                    self._gave_back = time.monotonic()
                    await self._give_back()
            except SwarmError as error:
                log.debug("what the server keeps was not looked at: %s", error)
                continue
            self._take(found)
            self._tell_made_again()

    def status(self) -> dict[str, Any]:
        """Fields of a status document."""
        return {"flaws": [flaw.document() for flaw in self.flaws]} if self.flaws else {}

    def flaw_of(self, model: str, version: str) -> str:
        """What is wrong with what a version needs, in words; "" for nothing that is known."""
        of = f"{model}@{version}", ""
        return next((flaw.line for flaw in self.flaws if flaw.where in of), "")

    async def _look(self) -> list[Flaw]:
        """The flaws that are left, once what this node may mend is mended. Raises `SwarmError`."""
        found: list[Flaw] = []
        self._looked_at, self._looks_at = self._looks_at, set()
        now = time.monotonic()
        probes = now - self._probed >= PROBE_EVERY
        if probes:
            self._probed, self._stores_nothing = now, []
        for serving in self._servings():
            if serving.servers:
                where = f"{serving.info.model}@{serving.info.version}"
                lanes = await self._lanes(serving)
                found += await self._mended(lanes, where)
                if probes:  # a disk is full as a rule only for lanes in files
                    in_files = [lane for lane in lanes if lane.config["storage"] == "file"]
                    if in_files:
                        self._stores_nothing += await store_flaws(self._mesh, in_files, where)
        found += self._stores_nothing
        if self._leads(self._mesh.subjects.mesh, {peer.node for peer in self._peers.alive()}):
            found += await self._mended(common_of(self._mesh))
        return found

    async def _lanes(self, serving: Serving) -> list[KeptStream]:
        """The lanes that are this node's to look at."""
        info = serving.info
        lanes = lanes_of(self._mesh, info, self._config)
        if not lanes[0].may_mend:
            return [lanes[s.stage - 1] for s in serving.servers if self._leads_stage(s.source)]
        nodes: set[str] = set()
        for stage in range(1, info.last + 1):
            nodes |= {peer.node for peer in self._peers.serving(info, stage)}
        if not self._leads(f"{info.model}@{info.version}", nodes):
            return []
        return [] if await older_stream_is_there(self._mesh, info) else lanes

    async def _mended(self, kept: list[KeptStream], where: str = "") -> list[Flaw]:
        flaws = await look(kept, where)
        self._looks_at |= {each.stream for each in kept}
        # A flaw that is seen for the first time may be one of a lane that is just being made: its
        # node has until the next look.
        flaws = [flaw for flaw in flaws if flaw.stream in self._looked_at]
        if not flaws:
            return []
        left = await mended(kept, flaws)
        self._tell_gone(flaws, left)
        return left

    def _take(self, found: list[Flaw]) -> None:
        """Tell what is new, and what somebody else has mended."""
        before, self.flaws = self.flaws, found
        for flaw in found:
            if flaw not in before:
                log.warning("%s", flaw.line)
                self._tell("flaw", flaw.document())
        self._tell_gone(before, found)
        if before != found:
            self.on_change()

    async def _give_back(self) -> None:
        """The lanes of versions that serve no longer, where this node may and is the one to do it.
        Raises `SwarmError`."""
        servings = [each for each in self._servings() if each.servers]
        if not servings:
            return
        info = servings[-1].info
        model, lanes = info.model, lanes_of(self._mesh, info, self._config)
        nodes = {
            peer.node
            for each in servings
            for stage in range(1, each.info.last + 1)
            for peer in self._peers.serving(each.info, stage)
        }
        if not (lanes[0].may_mend and self._leads(model, nodes)):
            return
        if gone := await given_back_of(self._mesh, model):
            log.info("given back, of versions that serve no longer: %s", ", ".join(gone))
            self._tell("lanes-given-back", {"model": model, "streams": gone})

    def _tell_gone(self, before: list[Flaw], left: list[Flaw]) -> None:
        """Of streams that had flaws and have none."""
        gone: dict[str, list[Flaw]] = {}
        for flaw in before:
            if flaw.stream not in {each.stream for each in left}:
                gone.setdefault(flaw.stream, []).append(flaw)
        for stream, flaws in gone.items():
            self._tell_mended(stream, flaws[0].title, "; ".join(flaw.text for flaw in flaws))

    def _tell_made_again(self) -> None:
        """Of lanes that their own nodes have made again before anybody looked."""
        for serving in self._servings():
            info = serving.info
            for server in serving.servers:
                lane = server.source.lanes[ANY]
                seen = self._made_again.get(lane, 0)
                self._made_again[lane] = lane.made_again
                if lane.made_again > seen and self._leads_stage(server.source):
                    title = lane_title(info.model, info.version, server.stage)
                    self._tell_mended(lane.stream, title, MADE_AGAIN)

    def _tell_mended(self, stream: str, title: str, text: str) -> None:
        told = time.monotonic()
        if told - self._told.get(stream, -inf) < LOOK_EVERY * 2:
            return  # the lane's own node has seen the same
        self._told[stream] = told
        log.warning("%s is mended: %s", title, text)
        self._tell("mended", {"stream": stream, "title": title, "detail": text})

    def _leads_stage(self, source: StageSource) -> bool:
        peers = self._peers.serving(source.info, source.stage)
        return self._leads(source.lanes[ANY].stream, {peer.node for peer in peers})

    def _leads(self, what: str, nodes: Collection[str]) -> bool:
        """Whether it is this one of the nodes that looks."""
        me = self._peers.node
        return rendezvous(what, {me, *nodes})[0] == me
