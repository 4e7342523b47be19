"""The edge's queue keeps, drops or holds back captures that come faster than answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.waiting import eventually

from nodes.config import EdgeOptions
from nodes.edge.edge import Edge, EdgeCounters, open_source
from swarm.errors import InvalidArgument, NotConnected, Status
from swarm.link.send_rate import SendRate
from swarm.subjects import Subjects
from swarm.wire.hops import Hop
from swarm.wire.messages import Request, Result

LIMIT = 20.0  # seconds; only a hang gets there
simulated = pytest.mark.simulated


@dataclass
class Gate:
    """Answers one request for each `open`; notes the requests."""

    permits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    asked: list[int] = field(default_factory=list)
    status: Status = Status.OK
    hops: tuple[Hop, ...] = ()

    def open(self, count: int) -> None:
        for _ in range(count):
            self.permits.release()

    async def answer(self, model: str, request: Request, sequence: int = 0) -> Result:
        self.asked.append(sequence)
        await self.permits.acquire()
        return Result(
            f"r{sequence}",
            model,
            "1",
            status=self.status,
            message="no",
            degraded=True,
            hops=self.hops,
        )


class FakeLink:
    """Takes published results, unless it is cut."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.cut = False
        self.send_rate = SendRate()
        self.on_up: list[Callable[[], None]] = []

    def sync(self) -> asyncio.Future[None]:
        read = asyncio.get_running_loop().create_future()
        read.set_result(None)
        return read

    def publish(self, subject: str, data: bytes) -> None:
        if self.cut:
            raise NotConnected("cut")
        assert subject == "swarm.default.results.sink"
        self.lines.append(json.loads(data))


class FakeNode:
    """As much of a node as an edge sees."""

    def __init__(self) -> None:
        self.id = "edge-1"
        self.answerer = Gate()
        self.config = type("Config", (), {"model_name": "m", "role": "edge", "budget": 1000.0})()
        self.became_ready = asyncio.Event()
        self.became_ready.set()
        self.link = FakeLink()
        self.mesh = type(
            "Mesh", (), {"subjects": Subjects(), "link": self.link, "bulk": self.link}
        )()

    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "source.npz"
    np.savez(path, x=np.arange(6, dtype=np.float32).reshape(3, 2))
    return str(path)


def edge(node: FakeNode, source: str, **options: Any) -> Edge:
    settings: dict[str, Any] = {
        "source": source,
        "rate": 1e6,
        "sink": "sink",
        "queue": 4,
        "in_flight": 1,
        "count": 20,
    }
    return Edge(node, EdgeOptions(**(settings | options)), EdgeCounters())  # type: ignore[arg-type]


@simulated
async def test_drop_oldest_keeps_the_newest_captures(source: str) -> None:
    """One is asked, four wait: of twenty captures fifteen are dropped, never the last ones."""
    node = FakeNode()
    running = edge(node, source, on_full="drop-oldest")
    life = asyncio.create_task(running.run(asyncio.Event()))
    await eventually(lambda: running.counters.captured == 20)
    node.answerer.open(20)
    await asyncio.wait_for(life, LIMIT)
    assert node.answerer.asked[-4:] == [16, 17, 18, 19]
    assert running.counters.captured == 20
    assert running.counters.dropped == 20 - len(node.answerer.asked)
    assert running.counters.dropped >= 15
    assert running.counters.answered == len(node.answerer.asked) == len(node.link.lines)


@simulated
@pytest.mark.parametrize(("count", "drops"), [(20, False), (0, True)])
async def test_by_itself_an_edge_drops_only_captures_without_an_end(
    source: str, count: int, drops: bool
) -> None:
    node, stop = FakeNode(), asyncio.Event()
    running = edge(node, source, count=count, rate=100.0)
    life = asyncio.create_task(running.run(stop))
    await asyncio.sleep(1.0)
    assert (running.counters.dropped > 0) == drops
    node.answerer.open(1000)
    stop.set() if drops else None
    await asyncio.wait_for(life, LIMIT)
    assert drops or node.answerer.asked == list(range(20))


@simulated
async def test_block_loses_no_capture_and_holds_no_more_than_its_queue(source: str) -> None:
    node = FakeNode()
    running = edge(node, source, on_full="block")
    life = asyncio.create_task(running.run(asyncio.Event()))
    await asyncio.sleep(1.0)
    # One is asked, four wait, and one more was captured and waits for room.
    assert running.counters.captured <= 6
    node.answerer.open(20)
    await asyncio.wait_for(life, LIMIT)
    assert node.answerer.asked == list(range(20))
    assert running.counters.dropped == 0
    assert running.counters.answered == 20


@simulated
@pytest.mark.parametrize(
    "hop",
    [
        Hop(1, "hostile", -1_000_000, -1),  # it took less than no time
        Hop(1, "later", 1, 1, extra={"kept": 7, "bytes": b"\xff", "far": inf, "map": {b"k": 1}}),
    ],
)
async def test_a_hop_that_json_cannot_say_or_that_lies_ends_no_edge(source: str, hop: Hop) -> None:
    """Foreign data: a faulty or hostile node's, or that of a later version of the code."""
    node = FakeNode()
    node.answerer.hops = (hop,)
    node.answerer.open(20)
    running = edge(node, source, on_full="block")
    await asyncio.wait_for(running.run(asyncio.Event()), LIMIT)
    assert running.counters.answered == len(node.link.lines) == 20
    known = {"stage", "node", "queue_us", "compute_us", "batch", "kept"}
    assert all(set(told) <= known for line in node.link.lines for told in line["hops"])


@simulated
async def test_no_more_are_in_flight_than_allowed(source: str) -> None:
    node = FakeNode()
    running = edge(node, source, on_full="block", in_flight=3, queue=2)
    life = asyncio.create_task(running.run(asyncio.Event()))
    await asyncio.sleep(1.0)
    assert len(node.answerer.asked) == 3
    node.answerer.open(1)
    await eventually(lambda: len(node.answerer.asked) == 4)
    node.answerer.open(20)
    await asyncio.wait_for(life, LIMIT)
    assert sorted(node.answerer.asked) == list(range(20))


@simulated
async def test_each_answer_reaches_the_sink_failed_or_not(source: str) -> None:
    node = FakeNode()
    node.answerer.status = Status.UNAVAILABLE
    node.answerer.open(20)
    running = edge(node, source, on_full="block")
    await asyncio.wait_for(running.run(asyncio.Event()), LIMIT)
    assert [line["sequence"] for line in node.link.lines] == list(range(20))
    assert {line["status"] for line in node.link.lines} == {"UNAVAILABLE"}
    assert all(line["error"] == "no" and "outputs" not in line for line in node.link.lines)
    assert (running.counters.answered, running.counters.failed) == (0, 20)
    assert running.counters.status()["edge"]["failed"] == 20


@simulated
async def test_a_sink_that_cannot_be_reached_stops_no_capture(source: str) -> None:
    node = FakeNode()
    node.link.cut = True
    node.answerer.open(20)
    running = edge(node, source, on_full="block")
    await asyncio.wait_for(running.run(asyncio.Event()), LIMIT)
    assert (running.counters.answered, running.counters.degraded) == (20, 20)


@simulated
async def test_stop_ends_an_endless_source_long_before_a_budget_ends(source: str) -> None:
    node = FakeNode()
    node.answerer.open(1_000_000)
    stop = asyncio.Event()
    running = edge(node, source, count=0)
    life = asyncio.create_task(running.run(stop))
    await eventually(lambda: running.counters.answered > 10)
    stop.set()
    await asyncio.wait_for(life, LIMIT)


def test_an_npz_source_is_played_row_by_row(source: str) -> None:
    captures = open_source(source)
    assert [capture["x"].tolist() for capture in captures] == [[[0, 1]], [[2, 3]], [[4, 5]]]


def test_the_digits_source_is_one_image_a_capture() -> None:
    captures = open_source("digits")
    assert len(captures) > 100
    assert {capture["image"].shape for capture in captures} == {(1, 1, 8, 8)}


def test_a_wrong_source_or_policy_is_refused(tmp_path: Path) -> None:
    uneven = tmp_path / "uneven.npz"
    np.savez(uneven, a=np.zeros(3), b=np.zeros(4))
    for name in ("camera", str(tmp_path / "absent.npz"), str(uneven)):
        with pytest.raises(InvalidArgument):
            open_source(name)
    with pytest.raises(InvalidArgument, match="drop-oldest or block"):
        EdgeOptions(on_full="drop")
