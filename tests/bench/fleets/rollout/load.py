"""Requests at a steady pace, each answer compared with that of every version."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bench.fleets.rollout.versions import IMAGES, images, matches
from bench.report.figure import percentile

import swarm
from swarm.errors import Status

BUDGET = 5.0  # seconds for a request
SESSIONS = 16
SESSION_EVERY = 4  # each so-manieth request is of a session


@dataclass
class Phase:
    """What became of the requests that were asked in one phase. Latencies in seconds.

    wrong: answers that are not those of the version that they name; mixed: of these, the ones that
    no version gives. moved: sessions' answers by another version than the one before.
    """

    requests: int = 0
    lost: int = 0
    wrong: int = 0
    mixed: int = 0
    moved: int = 0
    latencies: list[float] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def document(self, quiet_p99: float) -> dict[str, Any]:
        """quiet_p99: seconds, of the same load while nothing happens."""
        p99 = percentile(self.latencies, 0.99)
        document = {
            "requests": self.requests,
            "lost": self.lost,
            "wrong": self.wrong,
            "mixed": self.mixed,
            "sessions_moved": self.moved,
            "by_version": dict(sorted(self.versions.items())),
            "p50_ms": round(percentile(self.latencies, 0.5) * 1e3, 2),
            "p99_ms": round(p99 * 1e3, 2),
            "p99_ratio": round(p99 / quiet_p99, 2) if quiet_p99 else 0.0,
        }
        if self.reasons:
            document["reasons"] = dict(self.reasons.most_common(3))
        return document


class Load:
    """Asks `rate` times a second from `run` on, until `stop`. logits: by version, [IMAGES, 10]."""

    def __init__(self, mesh: swarm.Mesh, rate: float, logits: Mapping[str, np.ndarray]) -> None:
        self.phases: dict[str, Phase] = {}
        self._mesh = mesh
        self._rate = rate
        self._logits = logits
        self._images = images()
        self._phase = Phase()
        self._sessions: dict[str, str] = {}
        self._going = True

    def enter(self, name: str) -> Phase:
        """Requests from now on are of this phase; one that was left may be entered again."""
        self._phase = self.phases.setdefault(name, Phase())
        self._sessions = {}
        return self._phase

    def stop(self) -> None:
        """Ask no more; `run` returns when each request has ended."""
        self._going = False

    async def run(self) -> None:
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while self._going:
                delay = began + number / self._rate - time.monotonic()
                if delay > 0:
                    await asyncio.sleep(delay)
                if not self._going:
                    return
                group.create_task(self._ask(number, self._phase))
                number += 1

    async def _ask(self, number: int, phase: Phase) -> None:
        at = number % IMAGES
        session = f"s{number % SESSIONS}" if number % SESSION_EVERY == 0 else ""
        phase.requests += 1
        image = {"image": self._images[at : at + 1]}
        began = time.monotonic()
        result = await self._mesh.ask("digits", image, BUDGET, session)
        phase.latencies.append(time.monotonic() - began)
        if result.status is not Status.OK:
            phase.lost += 1
            phase.reasons[f"{result.version}: {result.status}: {result.message[:120]}"] += 1
            return
        phase.versions[result.version] += 1
        given = result.outputs["logits"]
        right = {v for v, logits in self._logits.items() if matches(given, logits[at : at + 1])}
        phase.wrong += result.version not in right
        phase.mixed += not right
        if session and phase is self._phase:
            phase.moved += self._sessions.get(session, result.version) != result.version
            self._sessions[session] = result.version
