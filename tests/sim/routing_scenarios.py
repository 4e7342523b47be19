"""The situations in which routing policies are compared: nodes, and a seeded trace of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from random import Random

SERVICE_S = 0.005
"""Seconds of compute for a request of size 1 on a node of speed 1."""
BUDGET_S = 0.050
"""Seconds of budget: the example of the public API."""
NODES = 8
REQUESTERS = 4
"""Requesters that route for themselves, each with its own policy instance."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request: when it comes (seconds), its size relative to the mean, who asks, and for what
    session ("" for none)."""

    at: float
    size: float
    requester: int
    session: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """speeds: of each node, 1.0 is the reference. warm: factor on the compute time where the node
    served the session lately. cache: sessions that a node keeps warm. slowing: the node whose speed
    falls tenfold, and from when to when (seconds). dies: the node killed, and when (seconds)."""

    name: str
    speeds: tuple[float, ...]
    jobs: list[Job] = field(repr=False)
    warm: float = 1.0
    cache: int = 0
    slowing: tuple[int, float, float] | None = None
    dies: tuple[int, float] | None = None

    def speed(self, node: int, now: float) -> float:
        """A node's speed at `now` (seconds)."""
        speed = self.speeds[node]
        if self.slowing is not None and self.slowing[0] == node:
            _, start, end = self.slowing
            speed *= 1 - 0.9 * min(1.0, max(0.0, (now - start) / (end - start)))
        return speed


def _noise(rng: Random) -> float:
    """What varies between runs of the same model: lognormal, mean 1, coefficient 0.2."""
    return exp(rng.gauss(-0.02, 0.2))


def _poisson(
    rng: Random,
    count: int,
    rate: float,
    size: Callable[[], float] = lambda: 1.0,
    session: Callable[[], str] = lambda: "",
) -> list[Job]:
    now = 0.0
    jobs = []
    for _ in range(count):
        now += rng.expovariate(rate)
        jobs.append(Job(now, size() * _noise(rng), rng.randrange(REQUESTERS), session()))
    return jobs


def _bursty(rng: Random, count: int, capacity: float) -> list[Job]:
    """Bursts of 50 ms at 1.6 of the capacity, then 100 ms at 0.3 of it: 0.73 on average."""
    now = 0.0
    jobs: list[Job] = []
    while len(jobs) < count:
        burst = now % 0.150 < 0.050
        end = now - now % 0.150 + (0.050 if burst else 0.150)
        step = rng.expovariate(capacity * (1.6 if burst else 0.3))
        if now + step >= end:  # memoryless: start again at the edge
            now = end + 1e-9
            continue
        now += step
        jobs.append(Job(now, _noise(rng), rng.randrange(REQUESTERS)))
    return jobs


def scenarios(count: int, seed: int) -> list[Scenario]:
    """All of them, with `count` requests each, always the same for a seed."""
    same = (1.0,) * NODES
    mixed_speeds = (2.0,) * (NODES // 2) + (0.5,) * (NODES // 2)
    capacity = NODES / SERVICE_S
    made = []

    def rng_for(name: str) -> Random:
        return Random(f"{seed}/{name}")

    rng = rng_for("homogeneous")
    made.append(Scenario("homogeneous", same, _poisson(rng, count, 0.75 * capacity)))
    rng = rng_for("4:1 speeds")
    fleet = sum(mixed_speeds) / SERVICE_S
    made.append(Scenario("4:1 speeds", mixed_speeds, _poisson(rng, count, 0.75 * fleet)))
    rng = rng_for("bursty")
    made.append(Scenario("bursty", same, _bursty(rng, count, capacity)))
    rng = rng_for("mixed sizes")
    sizes = rng
    jobs = _poisson(rng, count, 0.6 * capacity, size=lambda: 5.5 if sizes.random() < 0.1 else 0.5)
    made.append(Scenario("mixed sizes", same, jobs))
    rng = rng_for("warm sessions")
    names = [f"session-{index}" for index in range(160)]
    picks = rng
    jobs = _poisson(rng, count, 0.9 * capacity, session=lambda: picks.choice(names))
    made.append(Scenario("warm sessions", same, jobs, warm=0.4, cache=30))
    rng = rng_for("one slowing")
    jobs = _poisson(rng, count, 0.7 * capacity)
    span = jobs[-1].at
    made.append(Scenario("one slowing", same, jobs, slowing=(2, 0.2 * span, 0.6 * span)))
    rng = rng_for("one dying")
    jobs = _poisson(rng, count, 0.7 * capacity)
    made.append(Scenario("one dying", same, jobs, dies=(2, jobs[-1].at / 2)))
    return made
