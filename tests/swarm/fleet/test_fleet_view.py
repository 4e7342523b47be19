"""The view of a fleet follows what nodes say, within its bounds, and marks who abuses it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import a_stage, event, message

from swarm.errors import InvalidArgument
from swarm.fleet.documents import LARGEST_STATUS
from swarm.fleet.pages import MOST_NODES, Question, page, read_page, read_question
from swarm.fleet.status_interval import LONGEST_BELIEVED
from swarm.fleet.view import FORGET_GONE, FORGET_SILENT, MARK_FOR, SILENT_AFTER, FleetView
from swarm.gossip import PeerView

ENTRY = {"draining": False, "priority": 0, "host_id": "", "stages": [], "role": "shard-1"}


def told(*nodes: tuple[str, str]) -> dict[str, object]:
    entries = [{"node": node, "state": state} | ENTRY for node, state in nodes]
    return {"v": 1, "nodes": entries, "next": None}


def test_a_newcomer_knows_all_nodes_before_any_has_spoken() -> None:
    view = FleetView()
    view.take_page(told(("a", "alive"), ("b", "dead"), ("c", "suspect")), 0.0)
    assert {id_: node.state(0.0) for id_, node in view.nodes.items()} == {
        "a": "ready",
        "b": "dead",
        "c": "suspect",
    }
    assert view.nodes["a"].role == "shard-1"
    assert [node.node for node in view.living(0.0)] == ["a", "c"]


def test_a_nodes_own_word_is_newer_than_what_others_say_of_it() -> None:
    view = FleetView()
    view.take_status(*message("a", state="loading"), 1.0)
    view.take_page(told(("a", "dead")), 1.5)
    assert view.nodes["a"].state(1.6) == "loading"
    view.take_status(*message("a", state="left"), 2.0)
    assert view.nodes["a"].state(2.0) == "left"


def test_a_death_is_seen_at_its_event_and_a_return_at_the_next_status() -> None:
    view = FleetView()
    view.take_status(*message("a"), 1.0)
    assert view.take_event(*event("died", "b", subject="a"), 1.1)
    assert view.nodes["a"].state(1.2) == "dead"
    view.take_status(*message("a"), 2.0)
    assert view.nodes["a"].state(2.0) == "ready"
    assert [e["kind"] for e in view.events] == ["died"]


def test_a_node_that_only_events_tell_of_is_there_too() -> None:
    view = FleetView()
    view.take_event(*event("joined", "a"), 1.0)
    view.take_event(*event("died", "a", subject="b"), 1.0)
    view.take_event(*event("died", "a", subject="<b>"), 1.0)
    view.take_event(*event("routing", "c"), 1.0)
    assert view.by_state(1.0) == {"ready": 1, "dead": 1}
    assert view.nodes["a"].role == "shard-1"


def test_silence_is_a_state_and_what_is_long_gone_is_forgotten() -> None:
    view = FleetView()
    view.take_status(*message("a"), 0.0)
    view.take_status(*message("b", state="left"), 0.0)
    assert view.by_state(SILENT_AFTER + 1) == {"silent": 1, "left": 1}
    view.tend(FORGET_GONE + 1)
    assert list(view.nodes) == ["a"]
    view.tend(FORGET_SILENT + 1)
    assert (dict(view.nodes), view.nbytes) == ({}, 0)


def test_a_node_that_speaks_each_ten_seconds_is_silent_once_it_has_missed_three_statuses() -> None:
    view = FleetView()
    for spoke in (0.0, 10.0, 20.0):
        view.take_status(*message("seldom", every_s=10.0), spoke)
        assert view.nodes["seldom"].state(spoke + 9.9) == "ready"
        view.take_page(told(("seldom", "dead")), spoke + 9.9)
        assert view.nodes["seldom"].state(spoke + 9.9) == "ready", "its turn has not come"
    assert view.by_state(49.9) == {"ready": 1}
    assert view.by_state(50.1) == {"silent": 1}


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
    view = FleetView()
    view.take_status(*message("a", every_s=every), 0.0)
    node = view.nodes["a"]
    assert (node.state(after - 0.1), node.state(after + 0.1)) == ("ready", "silent")
    assert ("absurd" in node.marks(0.1)) == marked


def test_a_rate_is_of_the_last_seconds_however_seldom_a_node_speaks() -> None:
    view = FleetView()
    for moment, count in ((0.0, 0), (10.0, 1000), (20.0, 1010)):
        subject, data = message("a", stages=[a_stage(counters={"served": count})], every_s=10.0)
        silent = {k: v for k, v in json.loads(data).items() if k != "rate"}
        view.take_status(subject, json.dumps(silent).encode(), moment)
    assert view.nodes["a"].rate == 1.0


def test_the_rate_is_the_nodes_own_or_comes_of_its_counts() -> None:
    view = FleetView()
    view.take_status(*message("a", rate=12.5), 0.0)
    assert view.nodes["a"].rate == 12.5
    for second, count in ((0.0, 10), (1.0, 30)):
        subject, data = message("b", stages=[a_stage(counters={"served": count})])
        old = {k: v for k, v in json.loads(data).items() if k != "rate"}
        view.take_status(subject, json.dumps(old).encode(), second)
    assert view.nodes["b"].rate == 20.0


def test_whoever_floods_is_marked_and_its_neighbours_are_heard() -> None:
    view = FleetView()
    for number in range(5000):
        view.take_status(*message("loud"), number / 5000)
    view.take_status(*message("quiet"), 1.0)
    assert "flood" in view.nodes["loud"].marks(1.0)
    assert view.nodes["loud"].offences["flood"].count > 4800
    assert view.nodes["quiet"].marks(1.0) == {}
    assert view.nodes["quiet"].state(1.0) == "ready"
    view.take_status(*message("loud"), 2.0 + MARK_FOR)
    assert view.nodes["loud"].marks(2.0 + MARK_FOR) == {}


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
    view = FleetView()
    view.take_status(*message("a", version="7"), 0.0)
    view.take_status("swarm.m.status.a.-", data, 0.1)
    assert list(view.nodes["a"].marks(0.2)) == [kind]
    assert view.nodes["a"].state(0.2) == "ready"
    assert view.nodes["a"].status["version"] in ("7", "1")
    assert view.nbytes <= LARGEST_STATUS


def test_the_view_is_bounded_in_nodes_and_in_bytes() -> None:
    view = FleetView(most_nodes=3, most_bytes=3000)
    for number in range(50):
        view.take_status(*message(f"n{number}", stages=[]), 0.0)
    assert len(view.nodes) == 3
    assert view.refused == {"too_many_nodes": 47}
    view.take_status(*message("n0", detail="x" * 10_000), 0.1)
    assert view.refused["too_many_bytes"] == 1
    assert view.nbytes <= 3000
    silent = SILENT_AFTER + 1.0
    view.take_status(*message("late", stages=[]), silent)
    assert "late" in view.nodes, "a silent node makes room"


def test_what_others_say_of_nodes_counts_as_bytes_too_and_is_given_back_with_the_node() -> None:
    view = FleetView(most_bytes=3000)
    page = told(*((f"n{number}", "dead") for number in range(50)))
    for _ in range(3):
        view.take_page(page, 0.0)
    known = [node for node in view.nodes.values() if node.gossiped]
    assert 10 < len(known) < 50
    assert len(json.dumps([node.gossiped for node in known])) * 0.9 < view.nbytes <= 3000
    assert view.refused["too_many_bytes"] == 3 * (50 - len(known))
    assert view.take_status(*message("n0"), 0.1) is None, "its bytes are taken already"
    view.tend(FORGET_GONE + 1.0)
    assert view.nbytes == 0
    assert view.take_status(*message("n0"), FORGET_GONE + 1.0) is not None


def test_a_flood_of_events_is_cut_and_the_last_ones_are_kept() -> None:
    view = FleetView(most_events=20)
    taken = sum(
        view.take_event(*event("died", f"n{number}", subject="a"), number / 5000)
        for number in range(5000)
    )
    assert taken < 1300
    assert len(view.events) == 20
    assert view.refused["event_flood"] == 5000 - taken


def test_past_events_come_before_and_change_no_node() -> None:
    view = FleetView()
    view.take_status(*message("a"), 0.0)
    early = event("died", "b", subject="a", at="2025-01-01T00:00:00.000Z")
    live = event("joined", "c")
    view.take_event(*live, 0.5)
    view.take_past([early, live, ("swarm.m.events.x", b"{")], 1.0)
    assert [e["kind"] for e in view.events] == ["died", "joined"], "none twice"
    assert view.nodes["a"].state(1.0) == "ready"


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
