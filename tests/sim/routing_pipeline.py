"""A discrete-event simulation of one stage: requesters that route, lanes, nodes, gossip.

Virtual time only, so that hundreds of thousands of requests take seconds and a seed gives the same
figures everywhere. What it models, in seconds: a hop over the server (HOP_S); gossip that is 50 to
150 ms old; the shared lane as a central FIFO that nodes pull from while they have room; a node's
death, after which what it ran is redelivered after ACK_WAIT_S, and its own lane is drained by a
survivor once gossip has noticed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from sim.routing_scenarios import BUDGET_S, REQUESTERS, SERVICE_S, Job, Scenario
from swarm.routing.base import Policy
from swarm.routing.candidate import ANY, Candidate, RequestInfo
from swarm.routing.registry import policy
from swarm.routing.rendezvous import rendezvous

HOP_S = 0.0003
"""Measured: a JetStream hop of small features."""
PULL_S = 0.0002
"""What a pull from the shared lane costs on top."""
GOSSIP_S = 0.200
SPREAD_S = 0.100
"""Half a round until a node's news has reached a requester: news are 200 ms old on average."""
ACK_WAIT_S = 0.060
DETECT_S = 0.300


@dataclass(slots=True)
class Outcome:
    """What a policy did in a scenario: seconds from arrival to answer of each request (unordered),
    and how often it yielded to another policy."""

    latencies: list[float] = field(default_factory=list)
    yields: int = 0

    def percentile(self, q: float) -> float:
        """Nearest-rank percentile in seconds; q: 0..1."""
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(q * len(ranked)))]

    def goodput(self, budget_s: float) -> float:
        """Fraction of all requests answered within the budget."""
        return sum(latency <= budget_s for latency in self.latencies) / len(self.latencies)


@dataclass(slots=True)
class _Sent:
    """A request on its way: where it was sent, by which policy instance."""

    job: Job
    request: RequestInfo
    lane: str
    owner: Policy


class _Node:
    """One node: what it runs, holds, keeps warm, and tells."""

    def __init__(self, index: int, scenario: Scenario, rng: Random) -> None:
        self.index = index
        self.id = f"node-{index}"
        self.alive = True
        self.running: _Sent | None = None
        self.queue: deque[_Sent] = deque()
        self.inbound = 0  # pulled, not yet here
        self.parked = 0  # pulls waiting at the shared lane
        self.compute_s = SERVICE_S / scenario.speeds[index]  # known from the self-test
        self.warm: OrderedDict[str, None] = OrderedDict()
        self.phase = rng.uniform(0, GOSSIP_S)

        self.pulled = 0  # of the shared lane, on their way or here

    def tell(self, now: float) -> Candidate:
        return Candidate(
            self.id,
            load=len(self.queue),
            in_flight=self.inbound + (self.running is not None),
            compute_ewma_s=self.compute_s,
            compute_p50_s=self.compute_s,
            heard=now,
        )


class Simulation:
    """One policy in one scenario. `run` gives the outcome.

    credits: requests that a node pulls from the shared lane at a time; 2 hides the pull behind the
    running request and queues one blindly. fast_first: pulls of nodes over twice as slow as the
    fastest have the lower priority, as the lane's prioritized consumer would do it.
    """

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        seed: int,
        *,
        credits: int = 1,
        fast_first: bool = False,
        **options: Any,
    ) -> None:
        rng = Random(f"{seed}/{name}")
        self._scenario = scenario
        self._credits = credits
        self._fast_first = fast_first
        self._policies = [
            policy(name, rng=Random(rng.getrandbits(64)), **options) for _ in range(REQUESTERS)
        ]
        self._nodes = [_Node(index, scenario, rng) for index in range(len(scenario.speeds))]
        self._by_id = {node.id: node for node in self._nodes}
        self._view = [node.tell(0.0) for node in self._nodes]
        self._shared: deque[_Sent] = deque()
        self._parked: deque[_Node] = deque()
        self._heap: list[tuple[float, int, Any, Any]] = []
        self._order = count()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Serve every request of the scenario."""
        jobs = self._scenario.jobs
        for node in self._nodes:
            self._park(node, 0.0)
            self._at(node.phase, self._gossip, node)
        if self._scenario.dies is not None:
            index, when = self._scenario.dies
            self._at(when, self._die, self._nodes[index])
        heap, index = self._heap, 0
        while len(self._outcome.latencies) < len(jobs):
            if index < len(jobs) and jobs[index].at <= heap[0][0]:
                self._arrive(jobs[index], index)
                index += 1
            else:
                now, _, handle, what = heapq.heappop(heap)
                handle(what, now)
        self._outcome.yields = sum(
            getattr(event, "kind", "") == "yielded"
            for each in self._policies
            for event in each.take_events()
        )
        return self._outcome

    def _at(self, when: float, handle: Any, what: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._order), handle, what))

    def _arrive(self, job: Job, index: int) -> None:
        owner = self._policies[job.requester]
        request = RequestInfo(
            str(index),
            "model",
            "1",
            agent=f"agent-{job.requester}",
            session=job.session,
            features_bytes=int(4096 * job.size),
            remaining_s=BUDGET_S,
        )
        if not job.session:  # agents outnumber requesters: a request stands for one of them
            request = RequestInfo(
                request.id, "model", "1", 1, f"agent-{index % 997}", "", request.features_bytes,
                BUDGET_S,
            )  # fmt: skip
        lane = owner.choose(self._view, request, job.at)
        if lane is None:
            self._outcome.latencies.append(float("inf"))
            return
        owner.sent(lane, request, job.at)
        self._at(job.at + HOP_S, self._deliver, _Sent(job, request, lane, owner))

    def _deliver(self, sent: _Sent, now: float) -> None:
        if sent.lane == ANY:
            self._shared.append(sent)
            self._dispatch(now)
            return
        node = self._by_id[sent.lane]
        if not node.alive and node not in self._nodes:  # noticed: a survivor drains its lane
            alive = [other.id for other in self._nodes]
            node = self._by_id[rendezvous(node.id, alive)[0]]
        node.queue.append(sent)
        self._start(node, now)

    def _dispatch(self, now: float) -> None:
        """Hand what is in the shared lane to the pulls that wait there."""
        while self._shared and self._parked:
            node = self._next_pull()
            if node is None:
                return
            node.inbound += 1
            node.pulled += 1
            self._at(now + PULL_S, self._pulled, (node, self._shared.popleft()))

    def _next_pull(self) -> _Node | None:
        if self._fast_first:
            fastest = min(candidate.compute_ewma_s for candidate in self._view)
            slow = {c.node for c in self._view if c.compute_ewma_s > 2 * fastest}
            for node in self._parked:
                if node.id not in slow and node.alive and node.pulled < self._credits:
                    self._parked.remove(node)
                    node.parked -= 1
                    return node
        while self._parked:
            node = self._parked.popleft()
            node.parked -= 1
            if node.alive and node.pulled < self._credits:
                return node
        return None

    def _pulled(self, what: tuple[_Node, _Sent], now: float) -> None:
        node, sent = what
        if not node.alive:
            self._at(now + ACK_WAIT_S, self._deliver, sent)
            return
        node.inbound -= 1
        node.queue.append(sent)
        self._start(node, now)

    def _start(self, node: _Node, now: float) -> None:
        if node.running is not None or not node.queue or not node.alive:
            return
        sent = node.running = node.queue.popleft()
        took = _service_s(self._scenario, node.index, sent.job, node.warm, now)
        self._at(now + took, self._finish, (node, sent, took))

    def _finish(self, what: tuple[_Node, _Sent, float], now: float) -> None:
        node, sent, took = what
        if not node.alive:
            return
        node.running = None
        node.pulled -= sent.lane == ANY
        node.compute_s += 0.1 * (took - node.compute_s)
        latency = now - sent.job.at
        self._outcome.latencies.append(latency)
        sent.owner.done(sent.lane, sent.request, now, latency, True)
        self._start(node, now)
        self._park(node, now)

    def _park(self, node: _Node, now: float) -> None:
        while node.pulled + node.parked < self._credits:
            node.parked += 1
            self._parked.append(node)
        self._dispatch(now)

    def _gossip(self, node: _Node, now: float) -> None:
        if node.alive:
            self._at(now + SPREAD_S, self._heard, node.tell(now))
            self._at(now + GOSSIP_S, self._gossip, node)

    def _heard(self, told: Candidate, now: float) -> None:
        self._view = [told if old.node == told.node else old for old in self._view]

    def _die(self, node: _Node, now: float) -> None:
        node.alive = False
        if node.running is not None:
            wait = ACK_WAIT_S if node.running.lane == ANY else max(ACK_WAIT_S, DETECT_S)
            self._at(now + wait, self._deliver, node.running)
        for sent in [sent for sent in node.queue if sent.lane == ANY]:
            node.queue.remove(sent)
            self._at(now + ACK_WAIT_S, self._deliver, sent)
        self._at(now + DETECT_S, self._noticed, node)

    def _noticed(self, node: _Node, now: float) -> None:
        self._nodes.remove(node)
        self._view = [candidate for candidate in self._view if candidate.node != node.id]
        for owner in self._policies:
            owner.retain({candidate.node for candidate in self._view})
        while node.queue:
            self._deliver(node.queue.popleft(), now)


def _service_s(
    scenario: Scenario, node: int, job: Job, warm: OrderedDict[str, None], now: float
) -> float:
    """Seconds that the node takes for the request, started now; keeps its session warm."""
    took = SERVICE_S * job.size / scenario.speed(node, now)
    if job.session and scenario.cache:
        if job.session in warm:
            took *= scenario.warm
        warm[job.session] = None
        warm.move_to_end(job.session)
        if len(warm) > scenario.cache:
            warm.popitem(last=False)
    return took


def clairvoyant(scenario: Scenario) -> Outcome:
    """The reference: a central queue with perfect knowledge of sizes, speeds, caches and deaths,
    without hop or pull costs; each request in its order goes where it completes soonest."""
    free = [0.0] * len(scenario.speeds)
    warm: list[OrderedDict[str, None]] = [OrderedDict() for _ in free]
    outcome = Outcome()
    for job in scenario.jobs:
        best, soonest = 0, float("inf")
        for node, busy in enumerate(free):
            start = max(job.at, busy)
            took = SERVICE_S * job.size / scenario.speed(node, start)
            if job.session and job.session in warm[node]:
                took *= scenario.warm
            end = start + took
            if scenario.dies is not None and scenario.dies[0] == node and end > scenario.dies[1]:
                continue
            if end < soonest:
                best, soonest = node, end
        _service_s(scenario, best, job, warm[best], max(job.at, free[best]))
        free[best] = soonest
        outcome.latencies.append(soonest - job.at)
    return outcome
