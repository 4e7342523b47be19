"""A node says how it is: at each change of state and on request, heard or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from support.waiting import GENEROUS

import nodes.connection.connection
import swarm
from nodes.config import NodeConfig
from nodes.connection.events import Events
from nodes.life.node import Node
from nodes.life.status import STATUS_PAUSE, StatusPublisher
from swarm.errors import NotConnected
from swarm.fleet.status_interval import SMALL_FLEET, STATUS_EVERY, request_body, status_every
from swarm.fleet.view import RATE_LEAST
from swarm.gossip import PeerView
from swarm.link import LinkMessage
from swarm.subjects import Subjects

SCHEMA = json.loads((Path(swarm.__file__).parent / "schemas/status.schema.json").read_text())


class FakeLink:
    """Keeps published documents; `cut` refuses them. `hear` is a message of somebody."""

    def __init__(self) -> None:
        self.published: list[tuple[str, dict[str, Any]]] = []
        self.moments: list[float] = []  # of these, in the loop's time
        self.cut = False
        self.came = asyncio.Event()
        self._callbacks: dict[str, Callable[[LinkMessage], None]] = {}

    def publish(self, subject: str, data: bytes) -> None:
        if self.cut:
            raise NotConnected("cut")
        self.published.append((subject, json.loads(data)))
        self.moments.append(asyncio.get_running_loop().time())
        self.came.set()

    def subscribe(self, subject: str, callback: Callable[[LinkMessage], None]) -> int:
        self._callbacks[subject] = callback
        return 1

    def hear(self, subject: str, data: bytes = b"") -> None:
        self._callbacks[subject](LinkMessage(subject, "", None, data))


class Scene:
    """A publisher beside a node without stages, in a mesh of three; alive: nodes that live, as
    gossip knows."""

    def __init__(self, more: Callable[[], dict[str, Any]] = dict, alive: int = 3) -> None:
        self.link = FakeLink()
        self.gossip = SimpleNamespace(counters={}, alive=alive)
        states: list[Any] = ["alive", "alive", "dead"]
        view = {f"n{n}": PeerView(f"n{n}", state, 1, 1, {}) for n, state in enumerate(states)}
        self.clock = asyncio.get_running_loop().time
        self.started = self.clock()
        self.events = Events(self.link, Subjects(), "n0", "shard-1")  # type: ignore[arg-type]
        connection: Any = SimpleNamespace(
            mesh=SimpleNamespace(
                link=self.link, subjects=Subjects(), lender=SimpleNamespace(host=""), inbox=""
            ),
            config=NodeConfig("shard-1", "digits@7"),
            id="n0",
            events=self.events,
            membership=SimpleNamespace(
                view=lambda: view,
                gossip=self.gossip,
                events={"died": 1},
                sent_bytes=10,
                received_bytes=20,
            ),
        )
        self.changes: list[str] = []
        self.status = StatusPublisher(
            connection,
            list,
            [more],
            self.started,
            lambda change: self.changes.append(change["event"]),
            self.clock,
        )

    @property
    def documents(self) -> list[dict[str, Any]]:
        own = Subjects().status("n0")
        return [doc for subject, doc in self.link.published if subject == own]

    async def documents_until(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many documents; returns all."""
        async with asyncio.timeout(GENEROUS):
            while len(self.documents) < count:
                self.link.came.clear()
                await self.link.came.wait()
        return self.documents


async def test_a_change_is_published_at_once_and_what_is_not_changed_is_not() -> None:
    scene = Scene()
    scene.status.become("loading", "digits@7")
    scene.status.become("loading", "digits@7")
    scene.status.explain("digits@8")
    assert scene.changes == ["loading"]
    assert [doc["detail"] for doc in scene.documents] == ["digits@7", "digits@8"]
    assert scene.documents[0]["since"] == scene.documents[1]["since"], (
        "of the state, not the detail"
    )


async def test_a_document_keeps_the_contract_in_every_state() -> None:
    scene = Scene()
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for state in ("waiting", "loading", "ready", "draining", "left", "failed"):
        scene.status.become(state, "for a test")
        assert [error.message for error in validator.iter_errors(scene.status.document())] == []
    assert scene.status.document()["gossip"]["peers"]["alive"] == 2


@pytest.mark.simulated
async def test_the_start_is_timed_once_from_the_first_ready_on() -> None:
    scene = Scene()
    assert "ready_ms" not in scene.status.document()
    await asyncio.sleep(1.5)  # simulated
    scene.status.become("ready", "serving")
    took = scene.status.document()["ready_ms"]
    assert took == pytest.approx(1500)
    await asyncio.sleep(1.0)  # simulated
    scene.status.become("draining", "")
    scene.status.become("ready", "again")
    assert scene.status.document()["ready_ms"] == took


async def test_a_role_adds_fields_as_they_are_at_the_moment() -> None:
    captured = 0
    scene = Scene(lambda: {"edge": {"captured": captured}})
    captured = 5
    assert scene.status.document()["edge"] == {"captured": 5}


@pytest.mark.simulated
async def test_a_request_for_status_is_answered_long_before_the_next_is_due() -> None:
    scene = Scene()
    publishing = asyncio.create_task(scene.status.run())
    began = scene.clock()
    try:
        for count in range(1, 6):
            await scene.documents_until(count)
            scene.link.hear(Subjects().status_request)
        assert scene.clock() - began < STATUS_EVERY, "five documents"
    finally:
        publishing.cancel()


@pytest.mark.simulated
async def test_a_node_of_a_large_fleet_says_how_seldom_it_speaks_and_hurries_in_a_small_one() -> (
    None
):
    scene = Scene(alive=1000)
    scene.status.become("loading", "before gossip")
    publishing = asyncio.create_task(scene.status.run())
    try:
        assert [doc["every_s"] for doc in await scene.documents_until(2)] == [1.0, 10.0]
        scene.gossip.alive = 20
        scene.status.become("ready", "serving")
        assert scene.documents[-1]["every_s"] == 10.0, "the next document may still be as far away"
        scene.link.hear(Subjects().status_request)
        assert (await scene.documents_until(4))[-1]["every_s"] == 1.0
        await scene.documents_until(5)
    finally:
        publishing.cancel()


def spread(scenes: Iterable[Scene], number: int) -> float:
    """Seconds between the first and the last of these nodes' documents of this number."""
    moments = [scene.link.moments[number] for scene in scenes]
    return max(moments) - min(moments)


@pytest.mark.simulated
async def test_the_nodes_of_a_large_fleet_speak_by_themselves_at_moments_of_their_own() -> None:
    scenes = [Scene(alive=120) for _ in range(50)]
    publishing = [asyncio.create_task(scene.status.run()) for scene in scenes]
    try:
        for scene in scenes:
            await scene.documents_until(2)
        assert spread(scenes, 0) < 0.5, "they began together"
        assert spread(scenes, 1) > status_every(120) / 2
    finally:
        for task in publishing:
            task.cancel()


@pytest.mark.simulated
async def test_the_nodes_of_a_large_fleet_answer_in_the_time_asked_for_and_not_at_one_instant() -> (
    None
):
    scenes = [Scene(alive=1000) for _ in range(200)]
    publishing = [asyncio.create_task(scene.status.run()) for scene in scenes]
    try:
        for scene in scenes:
            await scene.documents_until(1)
        within = 0.5
        asked = scenes[0].clock()
        for scene in scenes:
            scene.link.hear(Subjects().status_request, request_body(within))
        for scene in scenes:
            await scene.documents_until(2)
        assert scenes[0].clock() - asked < within + STATUS_PAUSE
        assert spread(scenes, 1) > within / 2
    finally:
        for task in publishing:
            task.cancel()


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("alive", "body"),
    [(3, request_body(5.0)), (SMALL_FLEET, request_body(5.0)), (1000, b""), (1000, b"{")],
)
async def test_a_node_of_a_small_fleet_or_one_that_is_asked_for_no_time_answers_at_once(
    alive: int, body: bytes
) -> None:
    scene = Scene(alive=alive)
    publishing = asyncio.create_task(scene.status.run())
    try:
        for count in range(1, 6):
            await scene.documents_until(count)
            began = scene.clock()
            scene.link.hear(Subjects().status_request, body)
            await scene.documents_until(count + 1)
            assert scene.clock() - began < STATUS_EVERY / 2
    finally:
        publishing.cancel()


@pytest.mark.simulated
async def test_however_many_ask_a_node_publishes_no_more_often_than_its_pause_allows() -> None:
    scene = Scene(alive=1000)
    publishing = asyncio.create_task(scene.status.run())
    try:
        await scene.documents_until(1)
        began = scene.clock()
        while scene.clock() - began < 10 * STATUS_PAUSE:
            for body in (b"", request_body(0.001), request_body(1.0)):
                scene.link.hear(Subjects().status_request, body)
            await asyncio.sleep(0.001)  # simulated
        spent = scene.clock() - began
        # The first one; one that falls due by itself.
        assert 2 <= len(scene.documents) <= 2 + spent / STATUS_PAUSE
    finally:
        publishing.cancel()


async def test_an_event_says_who_tells_and_what_it_is_about() -> None:
    scene = Scene()
    scene.events.tell("took-over", {"stage": 2})
    [(subject, doc)] = scene.link.published
    assert subject == "swarm.default.events.took-over"
    assert (doc["node"], doc["role"], doc["kind"], doc["stage"]) == (
        "n0",
        "shard-1",
        "took-over",
        2,
    )


@pytest.mark.simulated
async def test_a_document_tells_the_rate_and_the_events_that_the_node_told() -> None:
    answered = 0
    scene = Scene(lambda: {"edge": {"answered": answered}})
    assert "rate" not in scene.status.document(), "one count gives none"
    await asyncio.sleep(2 * RATE_LEAST)  # simulated
    answered = 100
    scene.events.tell("took-over", {"stage": 2})
    doc = scene.status.document()
    assert doc["rate"] == pytest.approx(100 / (2 * RATE_LEAST), rel=0.01)
    assert doc["events"] == {"took-over": 1}
    assert doc["gossip"]["events"] == {"died": 1}


async def test_without_a_connection_a_node_goes_on_unheard() -> None:
    scene = Scene()
    scene.link.cut = True
    scene.status.become("ready", "serving")
    scene.events.tell("joined", {})
    scene.link.cut = False
    scene.status.publish()
    assert scene.documents[0]["state"] == "ready"


@pytest.mark.parametrize("role", ["shard-1", "fallback", "gateway", "edge"])
async def test_a_node_that_finds_no_server_ends_when_it_is_told_to(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes.connection.connection, "CONNECT_TIMEOUT", 0.05)
    nowhere = "nats://127.0.0.1:1"
    changes: list[str] = []
    node = Node(
        NodeConfig(role, "digits", nats=nowhere, no_cache=True, allow_unsigned=True),
        on_change=lambda doc: changes.append(doc["event"]),
    )
    stop = asyncio.Event()
    life = asyncio.create_task(node.run(stop))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(life, GENEROUS)
    assert changes == ["left"]
    assert not node.became_ready.is_set()


class ClosedTracer:
    """Knows whether it was closed: its last spans are sent then."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("error", [NotConnected("cut"), OSError("no space left")])
async def test_a_node_whose_mesh_fails_to_close_still_sends_its_last_spans(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(
        NodeConfig("gateway", nats="nats://127.0.0.1:1", no_cache=True, allow_unsigned=True)
    )
    tracer = ClosedTracer()
    node.mesh.tracer = tracer  # type: ignore[assignment]
    free = node.mesh.close

    async def fail() -> None:
        await free()
        raise error

    monkeypatch.setattr(node.mesh, "close", fail)
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(asyncio.gather(node.run(stop), return_exceptions=True), GENEROUS)
    assert tracer.closed
