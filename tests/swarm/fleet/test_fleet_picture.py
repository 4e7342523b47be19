"""The picture of a fleet follows what nodes say, within its bounds, and marks who abuses it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import a_stage, event, message

from swarm.errors import InvalidArgument
from swarm.fleet.documents import LARGEST_STATUS
from swarm.fleet.pages import MOST_NODES, Question, page, read_page, read_question
from swarm.fleet.picture import FORGET_GONE, FORGET_SILENT, MARK_FOR, SILENT_AFTER, FleetPicture
from swarm.fleet.status_interval import LONGEST_BELIEVED
from swarm.gossip import PeerView

ENTRY = {"draining": False, "priority": 0, "host_id": "", "stages": [], "role": "shard-1"}


def told(*nodes: tuple[str, str]) -> dict[str, object]:
    entries = [{"node": node, "state": state} | ENTRY for node, state in nodes]
    return {"v": 1, "nodes": entries, "next": None}


def test_a_newcomer_knows_all_nodes_before_any_has_spoken() -> None:
    picture = FleetPicture()
    picture.take_page(told(("a", "alive"), ("b", "dead"), ("c", "suspect")), 0.0)
    assert {id_: node.state(0.0) for id_, node in picture.nodes.items()} == {
        "a": "ready",
        "b": "dead",
        "c": "suspect",
    }
    assert picture.nodes["a"].role == "shard-1"
    assert [node.node for node in picture.living(0.0)] == ["a", "c"]


def test_a_nodes_own_word_is_newer_than_what_others_say_of_it() -> None:
    picture = FleetPicture()
    picture.take_status(*message("a", state="loading"), 1.0)
    picture.take_page(told(("a", "dead")), 1.5)
    assert picture.nodes["a"].state(1.6) == "loading"
    picture.take_status(*message("a", state="left"), 2.0)
    assert picture.nodes["a"].state(2.0) == "left"


def test_a_death_is_seen_at_its_event_and_a_return_at_the_next_status() -> None:
    picture = FleetPicture()
    picture.take_status(*message("a"), 1.0)
    assert picture.take_event(*event("died", "b", subject="a"), 1.1)
    assert picture.nodes["a"].state(1.2) == "dead"
    picture.take_status(*message("a"), 2.0)
    assert picture.nodes["a"].state(2.0) == "ready"
    assert [e["kind"] for e in picture.events] == ["died"]


def test_a_node_that_only_events_tell_of_is_there_too() -> None:
    picture = FleetPicture()
    picture.take_event(*event("joined", "a"), 1.0)
    picture.take_event(*event("died", "a", subject="b"), 1.0)
    picture.take_event(*event("died", "a", subject="<b>"), 1.0)
    picture.take_event(*event("routing", "c"), 1.0)
    assert picture.by_state(1.0) == {"ready": 1, "dead": 1}
    assert picture.nodes["a"].role == "shard-1"


def test_silence_is_a_state_and_what_is_long_gone_is_forgotten() -> None:
    picture = FleetPicture()
    picture.take_status(*message("a"), 0.0)
    picture.take_status(*message("b", state="left"), 0.0)
    assert picture.by_state(SILENT_AFTER + 1) == {"silent": 1, "left": 1}
    picture.tend(FORGET_GONE + 1)
    assert list(picture.nodes) == ["a"]
    picture.tend(FORGET_SILENT + 1)
    assert (dict(picture.nodes), picture.nbytes) == ({}, 0)


def test_a_node_that_speaks_each_ten_seconds_is_silent_once_it_has_missed_three_statuses() -> None:
    picture = FleetPicture()
    for spoke in (0.0, 10.0, 20.0):
        picture.take_status(*message("seldom", every_s=10.0), spoke)
        assert picture.nodes["seldom"].state(spoke + 9.9) == "ready"
        picture.take_page(told(("seldom", "dead")), spoke + 9.9)
        assert picture.nodes["seldom"].state(spoke + 9.9) == "ready", "its turn has not come"
    assert picture.by_state(49.9) == {"ready": 1}
    assert picture.by_state(50.1) == {"silent": 1}


@pytest.mark.parametrize(
    ("every", "after", "marked"),
    [
        ("soon", SILENT_AFTER, True),
        (-1, SILENT_AFTER, True),
        (0.01, SILENT_AFTER, False),
        (1e9, 3 * LONGEST_BELIEVED, False),
        (1e99, SILENT_AFTER, True),
    ],
)
def test_a_pace_that_cannot_be_hides_no_silent_node(
    every: object, after: float, marked: bool
) -> None:
    picture = FleetPicture()
    picture.take_status(*message("a", every_s=every), 0.0)
    node = picture.nodes["a"]
    assert (node.state(after - 0.1), node.state(after + 0.1)) == ("ready", "silent")
    assert ("absurd" in node.marks(0.1)) == marked


def test_a_rate_is_of_the_last_seconds_however_seldom_a_node_speaks() -> None:
    picture = FleetPicture()
    for moment, count in ((0.0, 0), (10.0, 1000), (20.0, 1010)):
        subject, data = message("a", stages=[a_stage(counters={"served": count})], every_s=10.0)
        silent = {k: v for k, v in json.loads(data).items() if k != "rate"}
        picture.take_status(subject, json.dumps(silent).encode(), moment)
    assert picture.nodes["a"].rate == 1.0


def test_the_rate_is_the_nodes_own_or_comes_of_its_counts() -> None:
    picture = FleetPicture()
    picture.take_status(*message("a", rate=12.5), 0.0)
    assert picture.nodes["a"].rate == 12.5
    for second, count in ((0.0, 10), (1.0, 30)):
        subject, data = message("b", stages=[a_stage(counters={"served": count})])
        old = {k: v for k, v in json.loads(data).items() if k != "rate"}
        picture.take_status(subject, json.dumps(old).encode(), second)
    assert picture.nodes["b"].rate == 20.0


def test_whoever_floods_is_marked_and_its_neighbours_are_heard() -> None:
    picture = FleetPicture()
    for number in range(5000):
        picture.take_status(*message("loud"), number / 5000)
    picture.take_status(*message("quiet"), 1.0)
    assert "flood" in picture.nodes["loud"].marks(1.0)
    assert picture.nodes["loud"].offences["flood"].count > 4800
    assert picture.nodes["quiet"].marks(1.0) == {}
    assert picture.nodes["quiet"].state(1.0) == "ready"
    picture.take_status(*message("loud"), 2.0 + MARK_FOR)
    assert picture.nodes["loud"].marks(2.0 + MARK_FOR) == {}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("malformed", b"x" * 1_000_000),
        ("malformed", b"{"),
        ("malformed", message("other")[1]),
        ("absurd", message("a", rss_bytes=-1)[1]),
    ],
)
def test_whoever_says_the_impossible_is_marked_and_stays_as_it_was(kind: str, data: bytes) -> None:
    picture = FleetPicture()
    picture.take_status(*message("a", version="7"), 0.0)
    picture.take_status("swarm.m.status.a.-", data, 0.1)
    assert list(picture.nodes["a"].marks(0.2)) == [kind]
    assert picture.nodes["a"].state(0.2) == "ready"
    assert picture.nodes["a"].status["version"] in ("7", "1")
    assert picture.nbytes <= LARGEST_STATUS


def test_the_picture_is_bounded_in_nodes_and_in_bytes() -> None:
    picture = FleetPicture(most_nodes=3, most_bytes=3000)
    for number in range(50):
        picture.take_status(*message(f"n{number}", stages=[]), 0.0)
    assert len(picture.nodes) == 3
    assert picture.refused == {"too_many_nodes": 47}
    picture.take_status(*message("n0", detail="x" * 10_000), 0.1)
    assert picture.refused["too_many_bytes"] == 1
    assert picture.nbytes <= 3000
    silent = SILENT_AFTER + 1.0
    picture.take_status(*message("late", stages=[]), silent)
    assert "late" in picture.nodes, "a silent node makes room"


def test_what_others_say_of_nodes_counts_as_bytes_too_and_is_given_back_with_the_node() -> None:
    picture = FleetPicture(most_bytes=3000)
    page = told(*((f"n{number}", "dead") for number in range(50)))
    for _ in range(3):
        picture.take_page(page, 0.0)
    known = [node for node in picture.nodes.values() if node.gossiped]
    assert 10 < len(known) < 50
    assert len(json.dumps([node.gossiped for node in known])) * 0.9 < picture.nbytes <= 3000
    assert picture.refused["too_many_bytes"] == 3 * (50 - len(known))
    assert picture.take_status(*message("n0"), 0.1) is None, "its bytes are taken already"
    picture.tend(FORGET_GONE + 1.0)
    assert picture.nbytes == 0
    assert picture.take_status(*message("n0"), FORGET_GONE + 1.0) is not None


def test_a_flood_of_events_is_cut_and_the_last_ones_are_kept() -> None:
    picture = FleetPicture(most_events=20)
    taken = sum(
        picture.take_event(*event("died", f"n{number}", subject="a"), number / 5000)
        for number in range(5000)
    )
    assert taken < 1300
    assert len(picture.events) == 20
    assert picture.refused["event_flood"] == 5000 - taken


def test_past_events_come_before_and_change_no_node() -> None:
    picture = FleetPicture()
    picture.take_status(*message("a"), 0.0)
    early = event("died", "b", subject="a", at="2025-01-01T00:00:00.000Z")
    live = event("joined", "c")
    picture.take_event(*live, 0.5)
    picture.take_past([early, live, ("swarm.m.events.x", b"{")], 1.0)
    assert [e["kind"] for e in picture.events] == ["died", "joined"], "none twice"
    assert picture.nodes["a"].state(1.0) == "ready"


# --- pages --------------------------------------------------------------------------------


def a_view(ids: list[str]) -> dict[str, PeerView]:
    values = {"role": "shard-1", "priority": 0, "host": "h", "draining": False}
    return {id_: PeerView(id_, "alive", 1, 1, values) for id_ in ids}


@given(st.sets(st.from_regex(r"\A[a-z0-9-]{1,12}\Z"), max_size=40), st.integers(1, 7))
def test_the_pages_of_any_nodes_together_are_the_fleet(ids: set[str], limit: int) -> None:
    view, after, seen = a_view(sorted(ids)), "", []
    while True:
        sent = json.dumps(page(Question(after, limit), view, "m", "by", "at")).encode()
        read = read_page(sent)
        assert read["total"] == len(ids)
        seen += [entry["node"] for entry in read["nodes"]]
        if read["next"] is None:
            break
        after = read["next"]
    assert seen == sorted(ids)


def test_a_page_is_bounded_in_bytes_and_has_one_node_at_least() -> None:
    view = a_view([f"n{n:03d}" for n in range(300)])
    small = page(Question("", MOST_NODES), view, "m", "by", "at", most_bytes=2000)
    assert 1 < len(small["nodes"]) < 30
    assert small["next"] == small["nodes"][-1]["node"]
    assert len(page(Question(), view, "m", "by", "at", most_bytes=1)["nodes"]) == 1


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"after": 1}', b'{"limit": 0}', b'{"limit": 9999}', b"x" * 5000]
)
def test_a_question_that_asks_for_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="after"):
        read_question(data)
