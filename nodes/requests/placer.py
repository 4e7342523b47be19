"""What an edge knows when it places a request: its own stages, the link, the queues of the mesh."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodes.config import EdgeOptions
from nodes.placing.choice import EdgeWays, PlacingFacts
from nodes.placing.ways import AUTO, FeaturePrivacy, jpeg_quality, ways_of
from nodes.versions.loaded import EDGE, Loaded
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.routing import Candidate
from swarm.wire.picture import PICTURES

LOOK_EVERY = 0.25  # seconds: gossip is little fresher, and a fleet may be large
MOST_VERSIONS = 8  # that are remembered; the longest unused one goes


@dataclass
class _Kept:
    """One version's. remote: seconds of each stage in the mesh, as of `looked_at`."""

    loaded: Loaded
    placement: EdgeWays
    remote: Mapping[int, float] = field(default_factory=dict)
    looked_at: float = -math.inf


def decode_pictures(mesh: Mesh, info: ModelInfo) -> bool:
    """Whether all nodes of stage 1 say that they decode pictures."""
    return PICTURES in (mesh.placement.beyond(info, 1).codecs or ())


class Placer:
    """The placements of the versions that this edge has loaded. options: of the edge. candidates():
    the primaries of the mesh with their loads."""

    def __init__(
        self, options: EdgeOptions, mesh: Mesh, candidates: Callable[[], Sequence[Candidate]]
    ) -> None:
        self._mode = options.placement
        self._quality = jpeg_quality(options.send)
        self._privacy = FeaturePrivacy(options.allow_picture, options.placement_from)
        self._mesh = mesh
        self._candidates = candidates
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    def of(self, loaded: Loaded) -> EdgeWays:
        """The placement of a version's requests."""
        return self._of(loaded).placement

    def _of(self, loaded: Loaded) -> _Kept:
        key = loaded.info.model, loaded.info.version
        known = self._kept.get(key)
        if known is not None and known.loaded is loaded:
            self._kept.move_to_end(key)
            return known
        runtimes = dict(loaded.local)
        if loaded.edge is not None:
            runtimes[EDGE] = loaded.edge
        ways = ways_of(loaded.info, runtimes, self._quality)
        local = {stage: runtime.compute_ms / 1e3 for stage, runtime in runtimes.items()}
        placement = EdgeWays(ways, loaded.info.last, local, self._mode, self._privacy)
        kept = self._kept[key] = _Kept(loaded, placement)
        if len(self._kept) > MOST_VERSIONS:
            self._kept.popitem(last=False)
        return kept

    def why_none(self, loaded: Loaded) -> str:
        """Why no way may be taken."""
        info, held = loaded.info, sorted(loaded.local)
        ways = ways_of(info, {*held, EDGE} if loaded.edge is not None else held, self._quality)
        there = ", ".join(way.name for way in ways) or "none"
        text = f"no way of {info.model}@{info.version} may be taken: there are {there}; "
        if self._mode != AUTO:
            return text + f"--placement {self._mode} takes no other kind"
        picture = "on" if self._privacy.picture else "off"
        text += f"--allow-picture is {picture}, and features may leave "
        return text + f"from stage {self._privacy.from_stage} on"

    def facts(self, loaded: Loaded, budget: float, local_wait: float) -> PlacingFacts:
        """As of now. budget, local_wait: seconds."""
        info, kept, now = loaded.info, self._of(loaded), time.monotonic()
        if now - kept.looked_at >= LOOK_EVERY:
            kept.looked_at, kept.remote = now, self._stages(info)
        link = self._mesh.routes_for(info).link
        speed = link.send_rate
        rate = speed.rate if math.isfinite(speed.rate) else 0.0
        return PlacingFacts(
            budget,
            link.connected,
            speed.round_trip,
            rate,
            speed.backlog,
            local_wait,
            kept.remote,
            self._quality > 0 and decode_pictures(self._mesh, info),
        )

    def _stages(self, info: ModelInfo) -> Mapping[int, float]:
        """Seconds of each stage in the mesh with its queue, of those that some node serves."""
        measured = {stage.stage: stage.compute_ms / 1e3 for stage in info.stages}
        serving = self._mesh.routes.placement.serving
        times = {stage: run for stage, run in measured.items() if serving(info, stage)}
        best: dict[int, float] = {}
        for node in self._candidates():
            if node.draining or node.suspected or node.stage not in measured:
                continue
            if info.version in node.versions.get(info.model, ()):
                run = node.compute_ewma_s or measured[node.stage]
                waits = (node.load + node.in_flight) * run
                best[node.stage] = min(best.get(node.stage, math.inf), waits + run)
        return times | best

    def status(self) -> dict[str, Any]:
        """Of each version: requests by way, the last reason, and how many were tried otherwise."""
        return {
            f"{model}@{version}": {
                "ways": dict(kept.placement.taken),
                "probes": kept.placement.probes,
                "why": kept.placement.why,
            }
            for (model, version), kept in self._kept.items()
        }
