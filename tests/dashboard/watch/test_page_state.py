"""What the dashboard makes of the messages of a fleet, in simulated time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statuses import a_stage, a_status

from nodes.watch.dashboard.history import History, Rate
from nodes.watch.dashboard.page_state import MOST_NAMELESS, MOST_NODES, PageState
from swarm.fleet.documents import LARGEST_STATUS
from swarm.subjects import Subjects

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
FIELDS = sorted(a_status("n"))


class Simulation:
    """A picture, its clock, and nodes that speak."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = PageState("default", wall=lambda: int(self.now * 1000))
        self.state.take_link(True, "127.0.0.1:4222", "", self.now)

    def speak(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            self.take(Subjects().status(document["node"]), json.dumps(document).encode())

    def take(self, subject: str, data: bytes) -> None:
        self.state.take_status(subject, data, self.now)

    def tell(self, kind: str, /, **fields: Any) -> None:
        data = json.dumps({"node": "teller", "kind": kind, "at": f"{self.now}"} | fields).encode()
        self.state.take_event(f"swarm.default.events.{kind}", data, self.now)

    def second(self) -> None:
        self.now += 1.0
        self.state.tick(self.now)

    def whole(self) -> dict[str, Any]:
        whole = self.state.whole(self.now)
        json.dumps(whole, allow_nan=False)  # as a browser can read it
        return whole

    @property
    def verdict(self) -> dict[str, Any]:
        return dict(self.whole()["verdict"])

    def stage(self, number: int) -> dict[str, Any]:
        return dict(self.whole()["pipelines"][0]["stages"][number - 1])


@pytest.fixture
def fleet() -> Simulation:
    """Three shards and a fallback, all well."""
    simulation = Simulation()
    simulation.speak(*(a_status(f"s{stage}", (stage,)) for stage in (1, 2, 3)))
    simulation.speak(a_status("back", (1, 2, 3)))
    return simulation


def test_a_healthy_fleet_is_well_in_one_line(fleet: Simulation) -> None:
    assert fleet.verdict["level"] == "well"
    assert fleet.verdict["problems"] == []
    assert [stage["cover"] for stage in fleet.whole()["pipelines"][0]["stages"]] == ["primary"] * 3


def test_a_death_shows_the_heir_at_once_without_waiting_for_silence(fleet: Simulation) -> None:
    fleet.now += 1.0
    fleet.tell("died", subject="s2")
    assert fleet.stage(2)["cover"] == "fallback"
    assert fleet.verdict["level"] == "warn"
    assert fleet.verdict["text"] == "digits, stage 2: s2 is gone, back took over"


def test_a_node_that_falls_silent_is_gone_without_any_event(fleet: Simulation) -> None:
    for _ in range(7):
        fleet.second()
        fleet.speak(*(a_status(f"s{stage}", (stage,)) for stage in (1, 3)))
        fleet.speak(a_status("back", (1, 2, 3)))
    assert fleet.whole()["nodes"]["s2"]["health"] == "dead"
    assert fleet.stage(2)["cover"] == "fallback"


def test_nobody_is_dead_only_because_the_mesh_cannot_be_reached(fleet: Simulation) -> None:
    fleet.state.take_link(False, "", "refused", fleet.now)
    for _ in range(30):
        fleet.second()
    assert {row["health"] for row in fleet.whole()["nodes"].values()} == {"well"}
    assert fleet.whole()["link"]["connected"] is False


def test_a_stage_that_nobody_serves_is_the_first_trouble(fleet: Simulation) -> None:
    fleet.now += 1.0
    fleet.tell("died", subject="s2")
    fleet.tell("died", subject="back")
    assert fleet.verdict["level"] == "bad"
    assert fleet.verdict["text"].startswith("digits, stage 2: no node serves it")
    assert any("no fallback is left" in p["text"] for p in fleet.verdict["problems"])


def keeps_speaking(fleet: Simulation, seconds: int, *names: str) -> None:
    for _ in range(seconds):
        fleet.second()
        for name in names:
            stages = (1, 2, 3) if name == "back" else (int(name[1]),)
            fleet.speak(a_status(name, stages))


@pytest.mark.parametrize("health", ["dead", "loading", "draining", "failed"])
@pytest.mark.parametrize("seconds", [1, 10, 100, 300])
def test_all_is_never_well_beside_a_node_that_is_not(
    fleet: Simulation, health: str, seconds: int
) -> None:
    """The page counts the nodes that are well, of all that did not leave."""
    fleet.speak(a_status("s4", (1,)))
    keeps_speaking(fleet, 1, "s1", "s2", "s3", "back")
    for _ in range(seconds):
        if health != "dead":
            fleet.speak(a_status("s4", (1,), state=health))
        keeps_speaking(fleet, 1, "s1", "s2", "s3", "back")
    rows = [r for r in fleet.whole()["nodes"].values() if r["health"] != "left"]
    well = sum(row["health"] == "well" for row in rows)
    assert ("All well" in fleet.verdict["text"]) == (well == len(rows))
    assert (fleet.verdict["level"] == "well") == (well == len(rows))


def test_nodes_that_all_died_are_not_told_as_a_mesh_that_nobody_came_to_yet(
    fleet: Simulation,
) -> None:
    fleet.now += 1.0
    for name in ("s1", "s2", "s3", "back"):
        fleet.tell("died", subject=name)
    assert fleet.verdict["level"] == "bad"
    assert "no node serves it" in fleet.verdict["text"]


def test_a_shard_that_was_started_again_is_told_so_and_not_as_others_doing_its_work(
    fleet: Simulation,
) -> None:
    fleet.now += 1.0
    fleet.tell("died", subject="s2")
    later = {"since": "2026-01-01T00:00:03.000Z", "at": "2026-01-01T00:00:04.000Z"}
    fleet.speak(a_status("s2b", (2,), **later))
    [told] = [p["text"] for p in fleet.verdict["problems"]]
    assert told == "shard-2 was started again: s2 is gone, s2b is ready"


def test_a_replica_that_was_there_before_does_the_work_of_one_that_died(fleet: Simulation) -> None:
    fleet.speak(a_status("s2b", (2,)))
    fleet.now += 1.0
    fleet.tell("died", subject="s2")
    [told] = [p["text"] for p in fleet.verdict["problems"]]
    assert told == "s2 (shard-2) is gone; others do its work"


def test_rates_are_of_the_last_seconds() -> None:
    rate = Rate()
    for second in range(10):
        rate.read(float(second), 30.0 * second)
    assert rate.value == pytest.approx(30.0)
    rate.read(10.0, 0.0)  # the node began anew
    assert rate.value is None


def test_a_ring_of_history_keeps_the_last_points_in_order() -> None:
    history = History(2, points=3)
    for point in range(5):
        history.add([point, None])
    assert history.columns() == [[2.0, 3.0, 4.0], [None, None, None]]


def test_changes_hold_what_changed_and_nothing_else(fleet: Simulation) -> None:
    fleet.state.changes(fleet.now)
    fleet.speak(a_status("s1", (1,), detail="other"))
    change = fleet.state.changes(fleet.now)
    assert set(change["nodes"]) == {"s1"}
    assert "verdict" not in change
    assert set(fleet.state.changes(fleet.now)) == {"at"}


def test_the_traffic_split_comes_from_desired_state(fleet: Simulation) -> None:
    serve = [{"version": "1", "share": 90}, {"version": "2", "share": 10}]
    fleet.state.take_desired("digits", {"serve": serve, "previous": "0"})
    assert fleet.whole()["models"][0]["serve"] == {"1": 90.0, "2": 10.0}
    assert fleet.whole()["pipelines"][0]["share"] == 90.0


def test_a_rollout_shows_with_the_share_that_it_has_now(fleet: Simulation) -> None:
    fleet.state.take_desired("digits", {"serve": [{"version": "1", "share": 100}]})
    rollout = {"model": "digits", "version": "2", "share": 30, "state": "running"}
    fleet.speak(a_status("s1") | {"rollout": rollout})
    assert fleet.whole()["models"][0]["serve"] == {"1": 70.0, "2": 30.0}
    assert fleet.whole()["models"][0]["rollout"]["state"] == "running"
    fleet.speak(a_status("s1") | {"rollout": rollout | {"state": "rolled-back", "share": 0}})
    assert fleet.whole()["models"][0]["serve"] == {"1": 100.0}


def test_what_is_learned_shows_as_curves_and_as_weight_versions(fleet: Simulation) -> None:
    for second in range(3):
        learning = {"model": "digits", "version": "1", "rounds": 5, "accuracy": 0.5 + second / 10}
        fleet.speak(a_status("pupil") | {"role": "learner", "stages": [], "learning": learning})
        fleet.second()
    fleet.tell("learning", node="pupil", what="minted", weights=4, accuracy=0.7)
    model = fleet.whole()["models"][0]
    assert fleet.whole()["history"]["learners"]["pupil"] == [0.5, 0.6, 0.7]
    assert [(one["weights"], one["accuracy"]) for one in model["minted"]] == [(4, 0.7)]
    assert model["learners"][0]["accuracy"] == pytest.approx(0.7)


def test_where_the_time_goes_includes_the_network_where_an_edge_tells(fleet: Simulation) -> None:
    hops = [
        {"stage": n, "node": f"s{n}", "queue_us": 1000, "compute_us": 2000, "batch": 1}
        for n in (1, 2, 3)
    ]
    result = json.dumps({"status": "OK", "latency_ms": 12.0, "hops": hops}).encode()
    fleet.state.take_result(result, fleet.now)
    answers = fleet.whole()["pipelines"][0]["answers"]
    assert answers["p50"] == pytest.approx(12.0, rel=0.05)
    assert answers["network"] == pytest.approx(3.0, rel=0.05)


def test_the_network_is_estimated_from_those_who_answer_where_no_edge_tells(
    fleet: Simulation,
) -> None:
    latency = {"p50": 11.0, "p99": 40.0, "ewma": 12.0}
    fleet.speak(a_status("s1") | {"requests": {"by_status": {"OK": 5}, "latency_ms": latency}})
    answers = fleet.whole()["pipelines"][0]["answers"]
    assert answers == {"p50": 11.0, "p99": 40.0, "network": 5.0, "about": True}


def test_an_objective_that_burns_is_the_first_trouble(fleet: Simulation) -> None:
    promise = {"model": "digits", "p99_ms": 20, "errors": 0.001, "burn": {"5m": 14.0}}
    counts = {"requests": 100, "slow": 30, "failed": 0}
    fleet.speak(a_status("s1") | {"slo": [promise | counts | {"burning": "latency"}]})
    calm = counts | {"burning": "", "burn": {}, "slow": 0}
    fleet.speak(a_status("back", (1, 2, 3)) | {"slo": [promise | calm]})
    assert fleet.verdict["level"] == "bad"
    assert fleet.verdict["text"].startswith("digits misses its objective: latency, 14.0 times")
    told = fleet.whole()["models"][0]["objective"]["text"]
    assert "99 % within 20 ms (15.00% took longer)" in told


def test_a_node_that_joins_is_told_of_once_although_its_peers_tell_too(fleet: Simulation) -> None:
    fleet.tell("joined", node="s7")
    fleet.now += 1.0
    fleet.tell("joined", subject="s7")
    assert [(e["kind"], e["node"]) for e in fleet.whole()["events"]] == [("joined", "s7")]


def test_a_server_whose_clock_was_set_is_news_once_however_many_nodes_tell(
    fleet: Simulation,
) -> None:
    words = "the clock of server n1 went back by 5.0 s"
    for node in ("a", "b", "c"):
        fleet.tell("clock-stepped", node=node, server="n1", seconds=-5.0, detail=words)
        fleet.second()
    [event] = fleet.whole()["events"]
    assert (event["kind"], event["level"], event["text"]) == ("clock-stepped", "warn", words)
    fleet.now += 10.0
    fleet.tell("clock-stepped", node="a", server="n1", seconds=-5.0, detail=words)
    assert len(fleet.whole()["events"]) == 2, "it was set again"


# --- hostile messages -----------------------------------------------------------------------------


def test_a_status_in_the_name_of_another_changes_nothing_and_its_sender_is_marked(
    fleet: Simulation,
) -> None:
    fleet.take("swarm.default.status.evil.-", json.dumps(a_status("s1", detail="forged")).encode())
    whole = fleet.whole()
    assert whole["nodes"]["s1"]["detail"] == "serving"
    assert whole["offenders"][0]["name"] == "evil"


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        ("evil", b"{" * 100_000),
        ("evil", b"[]"),
        ("evil", b"\xff\xfe"),
        ("evil", b'{"node": "evil", "x": "' + b"y" * (LARGEST_STATUS) + b'"}'),
        ("<script>alert(1)</script>", b"{}"),
    ],
)
def test_what_is_no_status_marks_its_sender(fleet: Simulation, subject: str, data: bytes) -> None:
    fleet.take(f"swarm.default.status.{subject}.-", data)
    assert len(fleet.whole()["nodes"]) == 4
    assert fleet.whole()["offenders"][0]["name"] == subject


def test_absurd_figures_are_not_shown_and_mark_their_node(fleet: Simulation) -> None:
    stage = a_stage(2, counters={"served": -1}, compute_ms={"p50": 1e300, "p99": "<b>"})
    fleet.speak(a_status("s2", (2,)) | {"rss_bytes": True, "stages": [stage, 7, None]})
    row = fleet.whole()["nodes"]["s2"]
    assert row["rss"] == 0.0
    assert row["stages"][0]["compute"] == (None, None)
    assert "rss_bytes" in row["offence"]


def test_a_thousand_invented_names_grow_the_picture_to_its_bound_only(fleet: Simulation) -> None:
    for number in range(MOST_NODES + 100):
        fleet.speak(a_status(f"invented-{number}"))
        fleet.take(f"swarm.default.status.<{number}>.-", b"no")
    whole = fleet.whole()
    assert len(whole["nodes"]) == MOST_NODES
    assert len(whole["offenders"]) == MOST_NAMELESS
    assert "s1" in whole["nodes"]


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6))
def test_no_field_of_a_status_breaks_the_picture(fields: dict[str, Any]) -> None:
    simulation = Simulation()
    simulation.speak(a_status("s2", (2,)))
    simulation.speak(a_status("s1") | fields | {"node": "s1"})
    simulation.second()
    whole = simulation.whole()
    assert "s2" in whole["nodes"]
    assert "s1" in {*whole["nodes"], *(offender["name"] for offender in whole["offenders"])}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["died", "learning", "took-over"]), st.dictionaries(st.text(), json_values))
def test_no_field_of_an_event_breaks_the_picture(kind: str, fields: dict[str, Any]) -> None:
    simulation = Simulation()
    simulation.speak(a_status("s1"))
    simulation.tell(kind, **({"what": "minted", "subject": "s1"} | fields))
    simulation.second()
    assert simulation.whole()["nodes"]["s1"]["health"] in ("well", "dead")


def test_a_plan_is_what_most_nodes_tell_of_and_one_liar_hides_it_not() -> None:
    simulation = Simulation()
    plan = {"model": "digits", "version": "1", "plan": 2, "slots": [[1, 1], [2, 3]]}
    for node, more in {
        "a": {"slot": [1, 1]},
        "b": {"slot": [2, 3], "pace_us": [1, 500, 700]},
        "c": {"lacking": "no node is left for the stages 2-3"},
        "liar": {"plan": 10**12, "slots": [[3, 1], [9]], "slot": [4, 4], "replicas": [7, 7, 7]},
    }.items():
        simulation.speak(a_status(node, (1, 2, 3), plans=[plan | more]))
    drawn = simulation.whole()["pipelines"][0]["plan"]
    assert (drawn["number"], drawn["lacking"]) == (2, "no node is left for the stages 2-3")
    assert [(slot["first"], slot["last"], slot["nodes"]) for slot in drawn["slots"]] == [
        (1, 1, 1),
        (2, 3, 1),
    ]
    found = [(lane["node"], lane["slot"], lane["ms"]) for lane in drawn["lanes"]]
    assert found == [("a", 0, None), ("b", 1, 1.2), ("c", None, None), ("liar", None, None)]
