"""What the one line above all says, for each way in which a fleet can be: it agrees with what
pages, and with the exit code of `swarm status`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statuses import a_stage, a_status
from test_page_state import Simulation

from nodes.cli.status import exit_code
from swarm.fleet.coverage import covered, lacking, out_of_service, served_unlisted

SERVING = {("digits", "1"): 3}
LATER = {"since": "2026-01-01T00:00:03.000Z", "at": "2026-01-01T00:00:04.000Z"}
DAY = 86400.0


def a_fleet() -> Simulation:
    """Three shards and a fallback, all well, of a model that serves."""
    made = Simulation()
    made.state.take_serving(SERVING)
    made.state.take_desired("digits", {"serve": [{"version": "1", "share": 100}]})
    made.speak(*(a_status(f"s{stage}", (stage,)) for stage in (1, 2, 3)))
    made.speak(a_status("back", (1, 2, 3)))
    made.now += 1.0
    return made


def dies(*names: str) -> Callable[[Simulation], None]:
    def go(fleet: Simulation) -> None:
        fleet.now += 0.1
        for name in names:
            fleet.tell("died", subject=name)

    return go


def leaves(name: str, *stages: int) -> Callable[[Simulation], None]:
    return lambda fleet: fleet.speak(a_status(name, stages, state="left"))


def says(name: str, *stages: int, **fields: Any) -> Callable[[Simulation], None]:
    return lambda fleet: fleet.speak(a_status(name, stages, **fields))


def serves(**versions: int) -> Callable[[Simulation], None]:
    return lambda fleet: fleet.state.take_serving(
        SERVING | {(model, "1"): last for model, last in versions.items()}
    )


def time_goes(seconds: int, **speak: tuple[int, ...]) -> Callable[[Simulation], None]:
    def go(fleet: Simulation) -> None:
        for _ in range(seconds):
            fleet.second()
            fleet.speak(*(a_status(name, stages) for name, stages in speak.items()))

    return go


def expires(name: str, stage: int, days: float, what: str) -> Callable[[Simulation], None]:
    return lambda fleet: fleet.speak(
        a_status(name, (stage,), expires={what: fleet.now + days * DAY})
    )


def server(state: str, store: str = "fine") -> Callable[[Simulation], None]:
    return lambda fleet: fleet.state.take_server(
        json.dumps({"state": state, "store": {"state": store}, "restarts": 1}).encode()
    )


ALL_FOUR = {"s1": (1,), "s2": (2,), "s3": (3,), "back": (1, 2, 3)}
LANE = {"stream": "S", "title": "the lane of stage 2 of digits@1", "detail": "", "mend": "promote"}
CANARY = {"model": "digits", "version": "2", "share": 0}

TABLE: list[tuple[str, list[Callable[[Simulation], None]], str, str]] = [
    ("all is well", [], "well", "All well: 4 nodes, 3 stages"),
    ("a node left", [leaves("back", 1, 2, 3)], "well", "All well: 3 nodes, 3 stages"),
    ("a node died beside a fallback", [dies("s2")], "warn", "stage 2: s2 is gone, back took over"),
    ("a stage has nobody", [dies("s2", "back")], "bad", "digits, stage 2: no node serves it"),
    ("all died", [dies("s1", "s2", "s3", "back")], "bad", "stage 1: no node serves it (and"),
    (
        "all died, and are forgotten",
        [dies("s1", "s2", "s3", "back"), time_goes(70)],
        "bad",
        "digits, stage 1: no node serves it (and 2 more)",
    ),
    (
        "the last node of the last stage left, and is forgotten",
        [
            leaves("s3", 3),
            leaves("back", 1, 2, 3),
            time_goes(70, s1=(1,), s2=(2,)),
        ],
        "bad",
        "digits, stage 3: no node serves it",
    ),
    ("a model has no node at all", [serves(other=2)], "bad", "other, stage 1: no node serves it"),
    (
        "a shard was started again",
        [dies("s2"), says("s2b", 2, **LATER)],
        "warn",
        "4 of 5 nodes are well, and serve every stage",
    ),
    (
        "a shard was started again on another host",
        [dies("s2"), says("s2b", 2, host="pi-9", **LATER)],
        "warn",
        "4 of 5 nodes are well, and serve every stage",
    ),
    (
        "two died, one was started again",
        [says("s2x", 2), dies("s2", "s2x"), says("s2b", 2, **LATER)],
        "warn",
        "(shard-2) is gone; others do its work",
    ),
    (
        "a replica does the work",
        [says("s2x", 2), dies("s2x")],
        "warn",
        "s2x (shard-2) is gone; others do its work",
    ),
    (
        "a node died whose version nobody else has",
        [says("new", 1, stages=[a_stage(1, version="9")]), dies("new")],
        "warn",
        "new (shard-1) is gone",
    ),
    ("a node hangs", [lambda f: f.tell("suspected", subject="s2")], "warn", "s2 (shard-2) does"),
    ("a node failed", [says("s2", 2, state="failed", detail="no")], "bad", "s2 (shard-2) failed"),
    ("a node loads", [says("more", 1, state="loading")], "warn", "4 of 5 nodes are well"),
    (
        "a node is long dead",
        [says("s2x", 2), dies("s2x"), time_goes(61, **ALL_FOUR)],
        "well",
        "All well: 4 nodes",
    ),
    (
        "a lane is missing",
        [says("s2", 2, flaws=[LANE | {"of": "digits@1"}])],
        "bad",
        "the lane of stage 2 of digits@1 is missing at the server, or not as it has to be",
    ),
    ("another stream is missing", [says("s2", 2, flaws=[LANE | {"of": ""}])], "warn", "is missing"),
    (
        "a stage fell to another device",
        [says("s2", 2, stages=[a_stage(2, device="cpu", wanted_device="cuda:0")])],
        "warn",
        "s2 (shard-2) computes stage 2 of digits on cpu: cuda:0 failed",
    ),
    ("a canary was rolled back", [says("s1", 1, rollout=CANARY | {"state": "rolled-back"})], "warn",
     "the canary digits@2 was rolled back"),
    ("a canary runs", [says("s1", 1, rollout=CANARY | {"state": "running"})], "well", "All well"),
    ("credentials end soon", [expires("s1", 1, 13, "credentials")], "warn", "in 13 days"),
    ("a certificate ends today", [expires("s1", 1, 0.2, "certificate")], "bad", "in less than a"),
    ("nothing ends soon", [expires("s1", 1, 90, "server")], "well", "All well"),
    (
        "a link loses packets",
        [says("s1", 1, connection={"sent": 2000, "resent": 200})],
        "warn",
        "s1 (shard-1) sends 10% of its packets again: its link loses them",
    ),
    (
        "a link is young",
        [says("s1", 1, connection={"sent": 20, "resent": 10})],
        "well",
        "All well",
    ),
    (
        "a breaker is open",
        [says("s1", 1, requests={"breakers": {"digits.1.1": "open"}})],
        "warn",
        "requesters have stopped asking digits.1.1, which fails again and again",
    ),
    ("the store is full", [server("up", "full")], "bad", "the server's store is full"),
    ("the server is away", [server("away")], "bad", "the server is away"),
    (
        "nothing is heard",
        [lambda f: f.state.take_link(False, "", "refused", f.now)],
        "bad",
        "Not known: the mesh cannot be reached",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("happens", "level", "says_it"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_headline_of_each_state_of_a_fleet(
    happens: list[Callable[[Simulation], None]], level: str, says_it: str
) -> None:
    fleet = a_fleet()
    for each in happens:
        each(fleet)
    verdict = fleet.verdict
    assert says_it in verdict["text"]
    assert verdict["level"] == level, verdict


NODE_STATES = ("ready", "loading", "draining", "failed", "left", "dead", "absent")


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(NODE_STATES), min_size=4, max_size=4), st.sampled_from([0, 3, 62]))
def test_all_is_well_only_where_each_node_is_and_each_stage_has_one(
    states: list[str], seconds: int
) -> None:
    """The page, `swarm status` and what pages judge the same stages."""
    fleet = Simulation()
    fleet.state.take_serving(SERVING)
    names = [name for name, state in zip(ALL_FOUR, states, strict=True) if state != "absent"]
    of = {name: ("ready" if s == "dead" else s) for name, s in zip(ALL_FOUR, states, strict=True)}
    for name in names:
        fleet.speak(a_status(name, ALL_FOUR[name], state=of[name]))
    fleet.now += 0.1
    gone = [n for n, state in zip(ALL_FOUR, states, strict=True) if state in ("dead", "left")]
    for name in set(gone) & set(names):
        if of[name] == "ready":
            fleet.tell("died", subject=name)
    for _ in range(seconds):
        fleet.second()
        for name in set(names) - set(gone):
            fleet.speak(a_status(name, ALL_FOUR[name], state=of[name]))
    rows = [row for row in fleet.whole()["nodes"].values() if row["health"] != "left"]
    covers = covered(SERVING, fleet.state.fleet.nodes.values(), fleet.now)
    lacks = lacking(covers)
    text, level = fleet.verdict["text"], fleet.verdict["level"]
    are_well = all(row["health"] == "well" for row in rows)
    own = all(cover.primaries for cover in covers)
    if "All well" in text:
        assert are_well
        assert not lacks
    if are_well and own:
        assert "All well" in text
    assert ("no node serves it" in text) == bool(lacks)
    assert (level == "bad") == (bool(lacks) or any(row["health"] == "failed" for row in rows))


NOTHING_IS_LISTED: dict[tuple[str, str], int] = {}
OTHER = SERVING | {("other", "1"): 2}
CODES: list[tuple[str, list[Callable[[Simulation], None]], dict[tuple[str, str], int], int]] = [
    ("all is well", [], SERVING, 0),
    ("no node", [lambda f: f.state.fleet.nodes.clear()], SERVING, 1),
    ("a fallback took over", [dies("s2")], SERVING, 0),
    ("a stage has nobody", [dies("s2", "back")], SERVING, 3),
    ("a model has no node at all", [], OTHER, 3),
    ("a lane is missing", [says("s2", 2, flaws=[LANE | {"of": "digits@1"}])], SERVING, 3),
    (
        "who told of a lane has left",
        [says("s2x", 2, flaws=[LANE | {"of": "a@1"}], state="left")],
        SERVING,
        0,
    ),
    ("another stream is missing", [says("s2", 2, flaws=[LANE | {"of": ""}])], SERVING, 0),
    ("the server lists no model", [], NOTHING_IS_LISTED, 3),
    ("a node hangs", [lambda f: f.tell("suspected", subject="s2")], SERVING, 0),
    ("credentials end soon", [expires("s1", 1, 13, "credentials")], SERVING, 0),
]


@pytest.mark.parametrize(
    ("happens", "serving", "code"), [row[1:] for row in CODES], ids=[row[0] for row in CODES]
)
def test_status_exits_with_three_where_the_headline_is_that_requests_find_no_answer(
    happens: list[Callable[[Simulation], None]], serving: dict[tuple[str, str], int], code: int
) -> None:
    fleet = a_fleet()
    for each in happens:
        each(fleet)
    nodes = list(fleet.state.fleet.nodes.values())
    unlisted = served_unlisted({model for model, _ in serving}, nodes, fleet.now)
    fleet.state.take_serving(serving, unlisted)
    lines = out_of_service(serving, unlisted, nodes, fleet.now)
    assert exit_code([node.status for node in nodes], lines) == code
    if code != 1:
        assert (fleet.verdict["level"] == "bad") == (code == 3), fleet.verdict


def test_a_model_that_no_ready_node_serves_is_not_missed_by_an_empty_server() -> None:
    fleet = a_fleet()
    nodes = fleet.state.fleet.nodes.values()
    assert served_unlisted((), nodes, fleet.now) == ["digits"]
    assert served_unlisted({"other"}, nodes, fleet.now) == []
    dies("s1", "s2", "s3", "back")(fleet)
    assert served_unlisted((), nodes, fleet.now) == []
