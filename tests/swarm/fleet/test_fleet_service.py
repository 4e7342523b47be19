"""One node answers for the fleet; a reader hears changes; events are there after the fact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from real_server import Links, cut
from statuses import message
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.fleet.events import ensure_events, keep_events, last_events
from swarm.fleet.service import ANSWER_WITHIN, MOST_SERVERS, FleetAnswers, FleetWatch, ask_fleet
from swarm.fleet.status_interval import SMALL_FLEET, asked_within, status_every
from swarm.gossip import PeerView
from swarm.link import Link, LinkMessage, LinkOptions, jetstream
from swarm.subjects import Subjects, api

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("m")
SCHEMA = json.loads(
    (Path(__file__).parents[3] / "swarm" / "schemas" / "fleet.schema.json").read_text()
)
VALUES = {
    "role": "shard-1",
    "priority": 0,
    "host": "h",
    "draining": False,
}


def view_of(count: int) -> dict[str, PeerView]:
    return {f"n{n:03d}": PeerView(f"n{n:03d}", "alive", 1, 1, VALUES) for n in range(count)}


async def answering(links: Links, url: str, name: str, count: int) -> tuple[Link, FleetAnswers]:
    link = await links.connect(url)
    answers = FleetAnswers(link, SUBJECTS, name, lambda: view_of(count))
    answers.start()
    await link.flush()
    return link, answers


async def test_a_large_fleet_comes_in_pages_from_any_node_and_keeps_its_schema(
    server: EmbeddedServer, links: Links
) -> None:
    for name in ("one", "two"):
        await answering(links, server.url, name, 450)
    reader = await links.connect(server.url)
    pages: list[Mapping[str, Any]] = []
    assert await ask_fleet(reader, SUBJECTS, pages.append)
    ids = [entry["node"] for page in pages for entry in page["nodes"]]
    assert ids == sorted(view_of(450))
    assert len(pages) == 3
    raw = await reader.request(SUBJECTS.fleet, b"")
    jsonschema.validate(json.loads(bytes(raw.data)), SCHEMA)


async def test_a_wrong_question_is_answered_with_the_right_one(
    server: EmbeddedServer, links: Links
) -> None:
    await answering(links, server.url, "one", 1)
    reader = await links.connect(server.url)
    answer = json.loads(bytes((await reader.request(SUBJECTS.fleet, b'{"limit": -1}')).data))
    assert answer["status"] == "INVALID_ARGUMENT"
    assert "after" in answer["error"]


async def test_whoever_asks_too_often_is_refused_and_is_answered_again_later(
    server: EmbeddedServer, links: Links
) -> None:
    await answering(links, server.url, "one", 1)
    reader = await links.connect(server.url)
    answers = await asyncio.gather(*(reader.request(SUBJECTS.fleet, b"") for _ in range(400)))
    said = [json.loads(bytes(answer.data)).get("status", "OK") for answer in answers]
    assert set(said) == {"OK", "RESOURCE_EXHAUSTED"}
    assert said.count("OK") < 300

    async def is_answered() -> bool:
        return await ask_fleet(reader, SUBJECTS, lambda page: None)

    await eventually(is_answered)


async def test_without_a_node_nobody_is_waited_for(
    server: EmbeddedServer, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.fleet.service.PAGE_TIMEOUTS", (3600.0,) * 3)
    reader = await links.connect(server.url)
    async with asyncio.timeout(GENEROUS):
        assert not await ask_fleet(reader, SUBJECTS, lambda page: None)


async def test_a_liar_that_repeats_its_page_keeps_nobody_asking(
    server: EmbeddedServer, links: Links
) -> None:
    liar = await links.connect(server.url)
    page = json.dumps({"v": 1, "nodes": [], "next": "a"}).encode()
    liar.subscribe(SUBJECTS.fleet, lambda message: liar.publish(message.reply, page))
    await liar.flush()
    reader = await links.connect(server.url)
    assert not await ask_fleet(reader, SUBJECTS, lambda page: None)


async def test_a_watch_knows_the_fleet_at_once_and_then_each_change(
    server: EmbeddedServer, links: Links
) -> None:
    node, _ = await answering(links, server.url, "n000", 3)
    reader = await links.connect(server.url)
    async with FleetWatch(reader, SUBJECTS) as watch:
        assert watch.answered
        assert sorted(watch.view.nodes) == ["n000", "n001", "n002"]
        node.publish(*message("n001", rate=5.0))
        assert await watch.until(lambda p, now: p.nodes["n001"].rate == 5.0, 5.0)
        died = {"v": 1, "kind": "died", "node": "n000", "role": "shard-1", "subject": "n002"}
        node.publish(SUBJECTS.event("died"), json.dumps(died).encode())
        assert await watch.until(lambda p, now: p.nodes["n002"].state(now) == "dead", 5.0)
        assert not await watch.until(lambda p, now: False, 0.05)


async def test_a_small_fleet_is_asked_to_speak_and_heard_without_waiting_for_the_next_second(
    server: EmbeddedServer, links: Links
) -> None:
    node, _ = await answering(links, server.url, "n000", 1)
    node.subscribe(
        SUBJECTS.status_request,
        lambda _: node.publish(*message("n000")),
    )
    await node.flush()
    reader = await links.connect(server.url)
    async with FleetWatch(reader, SUBJECTS, events=0) as watch:
        await watch.hear_all()
        assert watch.view.nodes["n000"].heard is not None


PAGES = {  # nodes that a page has, those that speak with their age, and what the watch says then
    "a page of long ago": ("ab", {"a": 60}, {"a": "ready", "b": "silent"}),
    "a page of a node that has just begun": ("a", {"a": 1, "b": 60}, {"a": "ready", "b": "ready"}),
    "all have just begun": ("a", {"a": 1, "b": 1}, {"a": "ready", "b": "ready"}),
    "one that others count does not speak": ("a", {"a": 60}, {"a": "ready"}),
}


@pytest.mark.parametrize("case", PAGES)
async def test_a_fleet_is_as_its_nodes_say_themselves_whatever_one_page_has(
    server: EmbeddedServer, links: Links, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    paged, ages, expected = PAGES[case]
    monkeypatch.setattr("swarm.fleet.service.SPOKEN_WITHIN", 0.2)
    monkeypatch.setattr("swarm.fleet.service.LOOK_EVERY", 0.02)
    node, reader = await links.connect(server.url), await links.connect(server.url)
    view = {id_: PeerView(id_, "alive", 1, 1, VALUES) for id_ in paged}
    FleetAnswers(node, SUBJECTS, "a", lambda: view).start()

    def speak(_: LinkMessage) -> None:
        for place, (id_, age) in enumerate(ages.items()):  # the page's node first, the others late
            gossip = {"peers": {"alive": 1 if age < 5 else 2}, "refused": {}}
            said = message(id_, uptime_s=age, gossip=gossip)
            asyncio.get_running_loop().call_later(0.05 * place, node.publish, *said)

    node.subscribe(SUBJECTS.status_request, speak)
    await node.flush()
    async with FleetWatch(reader, SUBJECTS, events=0) as watch:
        await watch.hear_all()
        now = asyncio.get_running_loop().time()
        assert {id_: each.state(now) for id_, each in watch.view.nodes.items()} == expected
        node.publish(*message("b"))  # whoever speaks late is there again
        assert await watch.until(
            lambda view, now: "b" in view.nodes and view.nodes["b"].state(now) == "ready", 5.0
        )


@pytest.mark.parametrize("count", [SMALL_FLEET + 1, 250])
async def test_a_newcomer_has_all_nodes_of_a_large_fleet_speak_once_and_one_after_the_other(
    server: EmbeddedServer, links: Links, count: int
) -> None:
    node, _ = await answering(links, server.url, "n000", count)
    asked: list[float] = []

    def speak(request: LinkMessage) -> None:
        asked.append(asked_within(request.data))
        for id_ in view_of(count):
            node.publish(*message(id_, every_s=status_every(count)))

    node.subscribe(SUBJECTS.status_request, speak)
    await node.flush()
    reader = await links.connect(server.url)
    async with FleetWatch(reader, SUBJECTS, events=0) as watch:
        await watch.hear_all()
        heard = [known for known in watch.view.nodes.values() if known.heard is not None]
        assert len(heard) == count
    await node.flush()
    assert asked == [ANSWER_WITHIN]


async def test_made_up_servers_take_bounded_memory(server: EmbeddedServer, links: Links) -> None:
    liar, reader = await links.connect(server.url), await links.connect(server.url)
    async with FleetWatch(reader, SUBJECTS, events=0) as watch:
        for number in range(2 * MOST_SERVERS):
            liar.publish(SUBJECTS.server, json.dumps({"url": f"nats://{number}"}).encode())
        liar.publish(*message("last"))
        assert await watch.until(lambda view, _: "last" in view.nodes, 5)
        assert len(watch.servers) == MOST_SERVERS


async def test_events_are_kept_within_limits_and_read_after_the_fact(
    server: EmbeddedServer, links: Links
) -> None:
    node = await links.connect(server.url)
    assert await ensure_events(node, SUBJECTS)
    info = await jetstream.call(node, api("STREAM.INFO", SUBJECTS.events_stream))
    assert info["config"]["max_age"] > 0
    assert info["config"]["max_bytes"] > 0
    for number in range(70):
        doc = {"v": 1, "kind": "joined", "node": f"n{number}", "role": "r", "at": f"{number:03d}"}
        node.publish(SUBJECTS.event("joined"), json.dumps(doc).encode())
    await node.flush()
    reader = await links.connect(server.url)

    async def told(most: int) -> list[str]:
        found = await last_events(reader, SUBJECTS, most)
        assert found is not None
        return [json.loads(data)["node"] for _, data in found]

    async def are_stored() -> bool:
        return len(await told(100)) == 70

    await eventually(are_stored)
    assert await told(100) == [f"n{n}" for n in range(70)]
    assert await told(40) == [f"n{n}" for n in range(30, 70)]
    async with FleetWatch(reader, SUBJECTS, events=10) as watch:
        assert [e["node"] for e in watch.view.events] == [f"n{n}" for n in range(60, 70)]


async def test_a_mesh_without_a_stream_has_no_past_events(
    server: EmbeddedServer, links: Links
) -> None:
    reader = await links.connect(server.url)
    assert await last_events(reader, SUBJECTS) is None


async def test_a_stream_that_the_server_lost_is_made_again_at_the_next_connection(
    server: EmbeddedServer, links: Links
) -> None:
    node = await links.connect(server.url)
    keeping = asyncio.get_running_loop().create_task(keep_events(node, SUBJECTS))
    reader = await links.connect(server.url)

    async def is_there() -> bool:
        return await last_events(reader, SUBJECTS) is not None

    try:
        await eventually(is_there)
        await jetstream.call(reader, api("STREAM.DELETE", SUBJECTS.events_stream))
        assert not await is_there()
        cut(node)
        await eventually(is_there)
    finally:
        keeping.cancel()


class Deaf(Link):
    """A link whose requests nobody answers."""

    def __init__(self) -> None:
        super().__init__(LinkOptions())
        self.asked = asyncio.Event()

    async def request(self, *_: Any, **__: Any) -> LinkMessage:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody answers")


async def test_a_reader_that_gives_up_while_it_begins_leaves_nothing_behind() -> None:
    link = Deaf()
    before = list(link.on_up)

    async def read() -> None:
        async with FleetWatch(link, SUBJECTS):
            pass

    reading = asyncio.create_task(read())
    await asyncio.wait_for(link.asked.wait(), GENEROUS)
    assert link.on_up != before
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert link.on_up == before


async def test_the_view_comes_although_a_node_hangs_that_is_asked_first(
    server: EmbeddedServer, links: Links
) -> None:
    """Each question that a hung member of the queue group swallows costs a short attempt."""
    node, reader = [await links.connect(server.url) for _ in range(2)]
    swallowed = 0

    def answer_the_fifth(message: LinkMessage) -> None:
        nonlocal swallowed
        swallowed += 1
        if swallowed == 5:
            page = {"v": 1, "mesh": "test", "node": "n", "at": "", "nodes": [], "next": None}
            node.publish(message.reply, json.dumps(page).encode())

    node.subscribe(SUBJECTS.fleet, answer_the_fifth, "fleet")
    await node.flush()
    assert await ask_fleet(reader, SUBJECTS, lambda page: None)
