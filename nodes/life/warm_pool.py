"""A node of the role `standby`: it holds a session of every stage, and takes the stage that lacks
most.

While each stage has a primary, it takes what primaries leave, of any stage. When stages have lost
theirs, it takes one of them whole and leaves the others to somebody else, if there is anybody. So
the stages that are lost are shared out, instead of one fallback node doing all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.life.serving import Serving
from swarm.fleet.advertised import serving
from swarm.fleet.membership import Membership
from swarm.model import ModelInfo
from swarm.periodic import BEAT, beat
from swarm.priorities import PRIMARY, STANDBY

LOOK_EVERY = BEAT  # seconds


@dataclass(frozen=True, slots=True)
class StageCover:
    """Who else serves a stage: primaries, and nodes of the other priorities but standbys. waiting:
    messages in its lanes."""

    primaries: int
    others: int
    waiting: int = 0


def stages_to_take(
    cover: Mapping[int, StageCover], standbys: Iterable[str], me: str, taken: int = 0
) -> frozenset[int]:
    """The stages that this node works on now. standbys: of this role, this node among them.
    taken: the stage that it took before, 0 for none.

    Standbys that see the same share out the stages without a word, in the order of their ids: the
    stage with the longest queue first. A stage is not left while it lacks a primary.
    """
    lacking = sorted(
        (stage for stage, present in cover.items() if not present.primaries),
        key=lambda stage: (-cover[stage].waiting, stage),
    )
    if not lacking:
        return frozenset(cover)
    place = sorted({*standbys, me}).index(me)
    own = taken if taken in lacking else lacking[place % len(lacking)]
    alone = {stage for stage in lacking if not cover[stage].others}
    return frozenset({own} | alone)


class WarmPool:
    """`run()` takes and leaves stages, until cancelled. tell(kind, detail): publishes an event."""

    def __init__(
        self,
        members: Membership,
        servings: Callable[[], list[Serving]],
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._members = members
        self._servings = servings
        self._tell = tell
        self._taken: dict[str, int] = {}  # by version
        self._left: dict[str, frozenset[int]] = {}  # stages that are paused

    async def run(self) -> None:
        """Look at the gossip at each of its rounds."""
        while True:
            await beat(LOOK_EVERY)
            for one in self._servings():
                self._share_out(one)

    def _share_out(self, one: Serving) -> None:
        version, peers = one.info.version, self._standbys(one.info)
        cover = {s.stage: self._cover(one.info, s.stage, s.waiting) for s in one.servers}
        work = stages_to_take(cover, peers, self._members.node, self._taken.get(version, 0))
        lost = [stage for stage in work if not cover[stage].primaries]
        before = self._left.get(version, frozenset())
        left = frozenset(cover) - work
        for server in one.servers:
            if server.stage in left - before:
                server.source.pause()
            elif server.stage in before - left:
                server.source.resume()
        self._left[version] = left
        taken = lost[0] if lost else 0
        if taken != self._taken.get(version, 0):
            kind = "took-over" if taken else "gave-back"
            stage = taken or self._taken.get(version, 0)
            self._tell(kind, {"stage": stage, "model": one.info.model})
        self._taken[version] = taken

    def _standbys(self, info: ModelInfo) -> list[str]:
        return [
            peer.node
            for peer in self._members.alive()
            if peer.values.get("role") == "standby"
            and any(serves.node == peer.node for serves in self._peers(info, 1))
        ]

    def _peers(self, info: ModelInfo, stage: int) -> list[Any]:
        return [
            peer
            for peer in serving(self._members.alive(), info.model, info.version, stage)
            if not peer.draining
        ]

    def _cover(self, info: ModelInfo, stage: int, waiting: int) -> StageCover:
        peers = self._peers(info, stage)
        primaries = sum(peer.priority == PRIMARY for peer in peers)
        others = sum(peer.priority > STANDBY for peer in peers)
        return StageCover(primaries, others, waiting)
