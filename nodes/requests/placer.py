"""What an edge knows when it places a request: its own stages, the link, the queues of the mesh."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nodes.config import EdgeOptions
from nodes.placing.choice import Facts, Placement
from nodes.placing.ways import AUTO, Privacy, ways_of
from nodes.versions.loaded import EDGE, Loaded
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.routing import Candidate

LOOK_EVERY = 0.25  # seconds: gossip is little fresher, and a fleet may be large


class Placer:
    """The placements of the versions that this edge has loaded. options: of the edge. candidates():
    the primaries of the mesh with their loads."""

    def __init__(
        self, options: EdgeOptions, mesh: Mesh, candidates: Callable[[], Sequence[Candidate]]
    ) -> None:
        self._mode = options.placement
        self._privacy = Privacy(options.allow_picture, options.placement_from)
        self._mesh = mesh
        self._candidates = candidates
        self._placements: dict[tuple[str, str], tuple[Loaded, Placement]] = {}
        self._remote: dict[tuple[str, str], tuple[float, Mapping[int, float]]] = {}

    def of(self, loaded: Loaded) -> Placement:
        """The placement of a version's requests."""
        key = loaded.info.model, loaded.info.version
        known = self._placements.get(key)
        if known is not None and known[0] is loaded:
            return known[1]
        runtimes = dict(loaded.local)
        if loaded.edge is not None:
            runtimes[EDGE] = loaded.edge
        ways = ways_of(loaded.info, runtimes)
        local = {stage: runtime.compute_ms / 1e3 for stage, runtime in runtimes.items()}
        placement = Placement(ways, loaded.info.last, local, self._mode, self._privacy)
        # Versions of one model come and go: those that are not asked for any more are forgotten.
        self._placements = {
            each: kept for each, kept in self._placements.items() if each[0] != key[0]
        } | {key: (loaded, placement)}
        return placement

    def why_none(self, loaded: Loaded) -> str:
        """Why no way may be taken."""
        info, held = loaded.info, sorted(loaded.local)
        ways = ways_of(info, {*held, EDGE} if loaded.edge is not None else held)
        there = ", ".join(way.name for way in ways) or "none"
        text = f"no way of {info.model}@{info.version} may be taken: there are {there}; "
        if self._mode != AUTO:
            return text + f"--placement {self._mode} takes no other kind"
        picture = "on" if self._privacy.picture else "off"
        text += f"--allow-picture is {picture}, and features may leave "
        return text + f"from stage {self._privacy.from_stage} on"

    def facts(self, info: ModelInfo, budget: float, local_wait: float) -> Facts:
        """As of now. budget, local_wait: seconds."""
        link = self._mesh.routes_for(info).link
        speed = link.send_rate
        rate = speed.rate if math.isfinite(speed.rate) else 0.0
        return Facts(
            budget,
            link.connected,
            speed.round_trip,
            rate,
            speed.backlog,
            local_wait,
            self._stages(info, time.monotonic()),
        )

    def _stages(self, info: ModelInfo, now: float) -> Mapping[int, float]:
        """Seconds of each stage in the mesh with its queue, of those that some node serves."""
        key = info.model, info.version
        seen = self._remote.get(key)
        if seen is not None and now - seen[0] < LOOK_EVERY:
            return seen[1]
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
        times |= best
        self._remote = {key: (now, times)}
        return times

    def status(self) -> dict[str, Any]:
        """Of each version: requests by way, the last reason, and how many were tried otherwise."""
        return {
            f"{model}@{version}": {
                "ways": dict(placement.taken),
                "probes": placement.probes,
                "why": placement.why,
            }
            for (model, version), (_, placement) in self._placements.items()
        }
