import json
import pickle
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.routing import (
    ANY,
    BadDesiredState,
    Candidate,
    NoRoute,
    RequestInfo,
    Route,
    RoutingTable,
    parse_desired,
    rendezvous,
)
from swarm.routing.adaptive import SafetyEvent


def document(**changes: Any) -> dict[str, Any]:
    return {"model": "digits", "serve": [{"version": "1", "share": 100}], **changes}


def node(name: str, *versions: str, **given: Any) -> Candidate:
    return Candidate(name, versions={"digits": frozenset(versions or ("1",))}, **given)


def request(agent: str = "a", **given: Any) -> RequestInfo:
    return RequestInfo(given.pop("id", "r"), "digits", agent=agent, **given)


def table(*candidates: Candidate, **changes: Any) -> RoutingTable:
    made = RoutingTable(rng=Random(1))
    made.apply(document(**changes))
    made.observe(candidates)
    return made


def route(made: RoutingTable, asked: RequestInfo) -> Route:
    found = made.route(asked, 0.0)
    assert isinstance(found, Route), found
    return found


# --- filters


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ({"draining": True}, "draining"),
        ({"suspected": True}, "suspected"),
        ({"warmed": False}, "unwarmed"),
        ({"memory_free_bytes": 99}, "memory"),
    ],
)
def test_a_node_that_cannot_serve_gets_nothing(out: dict[str, Any], why: str) -> None:
    made = table(node("bad", **out), node("good"), memory_bytes=100, policy="round-robin")
    assert {route(made, request()).lane for _ in range(10)} == {"good"}
    made.observe([node("bad", **out)])
    refused = made.route(request(), 0.0)
    assert isinstance(refused, NoRoute)
    assert refused.out == {why: 1}


def test_a_node_that_does_not_say_its_memory_is_not_ruled_out() -> None:
    assert route(table(node("n"), memory_bytes=1 << 30, policy="round-robin"), request())


def test_a_pinned_version_is_served_by_that_version_or_not_at_all() -> None:
    made = table(node("one", "1"), node("two", "2"), policy="round-robin")
    found = route(made, request(version="2"))
    assert (found.lane, found.version) == ("two", "2")
    assert isinstance(made.route(request(version="3"), 0.0), NoRoute)


def test_only_nodes_of_the_stage_and_model_are_candidates() -> None:
    other = Candidate("other", versions={"letters": frozenset({"1"})})
    made = table(node("late", stage=2), other, node("n"), policy="round-robin")
    assert route(made, request()).lane == "n"
    assert route(made, request(stage=2)).lane == "late"


def test_a_preferred_device_is_preferred_and_others_serve_without_it() -> None:
    cpu, gpu = node("cpu"), node("gpu", device="cuda")
    made = table(cpu, gpu, device="cuda", policy="round-robin")
    assert {route(made, request()).lane for _ in range(6)} == {"gpu"}
    made.observe([cpu, replace(gpu, suspected=True)])
    assert route(made, request()).lane == "cpu"


def test_the_default_policy_is_the_shared_lane() -> None:
    assert route(table(node("n")), request()).lane == ANY


def test_without_desired_state_the_only_version_there_is_serves() -> None:
    made = RoutingTable(rng=Random(1))
    made.observe([node("n", "7")])
    assert route(made, request()).version == "7"
    made.observe([node("n", "7"), node("m", "8")])
    assert isinstance(made.route(request(), 0.0), NoRoute)
    assert route(made, request(version="8")).version == "8"


def test_what_is_at_its_limit_is_told_apart_from_what_is_gone() -> None:
    made = table(
        node("n"), policy="token-bucket", policy_options={"overflow": "refuse", "burst": 1}
    )
    results = [made.route(request(), 0.0) for _ in range(3)]
    refused = results[-1]
    assert isinstance(refused, NoRoute)
    assert refused.reason == "every node is at its limit"


# --- the split between versions

CANARY = [{"version": "1", "share": 90}, {"version": "2", "share": 10}]
BOTH = (node("n", "1", "2"),)


def versions(made: RoutingTable, count: int = 4000) -> dict[str, str]:
    return {f"a{i}": route(made, request(f"a{i}", id=f"r{i}")).version for i in range(count)}


def test_a_canary_gets_its_share() -> None:
    counts = Counter(versions(table(*BOTH, serve=CANARY)).values())
    assert counts["2"] == pytest.approx(400, rel=0.15)


def test_an_agent_stays_on_its_version_whatever_it_asks() -> None:
    made = table(*BOTH, serve=CANARY)
    for agent in ("x", "y", "z"):
        asked = {route(made, request(agent, id=str(i), session=str(i))).version for i in range(50)}
        assert len(asked) == 1


@pytest.mark.parametrize(("sticky", "mixed"), [("session", False), ("none", True)])
def test_the_split_may_stick_to_the_session_or_to_nothing(sticky: str, mixed: bool) -> None:
    made = table(*BOTH, serve=[{"version": v, "share": 50} for v in "12"], sticky=sticky)
    asked = {route(made, request(str(i), id=str(i), session="one")).version for i in range(100)}
    assert (len(asked) == 2) is mixed


def test_raising_a_canary_moves_only_the_agents_it_gains() -> None:
    made = table(*BOTH, serve=CANARY)
    before = versions(made)
    made.apply(document(serve=[{"version": "1", "share": 70}, {"version": "2", "share": 30}]))
    after = versions(made)
    moved = [agent for agent in before if before[agent] != after[agent]]
    assert all(after[agent] == "2" for agent in moved)
    assert len(moved) == pytest.approx(800, rel=0.15)


def test_a_version_without_nodes_spills_to_the_other_and_says_so() -> None:
    made = table(node("n", "1"), serve=CANARY)
    found = [route(made, request(f"a{i}")) for i in range(200)]
    assert {each.version for each in found} == {"1"}
    assert 5 < sum(each.spilled for each in found) < 50


def test_a_version_with_no_share_gets_nothing_not_even_spilled() -> None:
    made = table(
        node("n", "2"), serve=[{"version": "1", "share": 100}, {"version": "2", "share": 0}]
    )
    assert isinstance(made.route(request(), 0.0), NoRoute)


# --- documents


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"model": "a.b"}, "model"),
        ({"model": None}, "model"),
        ({"serve": []}, "serve"),
        ({"serve": "1"}, "serve"),
        ({"serve": [3]}, "serve[0]"),
        ({"serve": [{"version": "1", "share": 90}]}, "serve"),
        ({"serve": [{"version": "1", "share": True}]}, "serve[0].share"),
        ({"serve": [{"version": "1", "share": float("nan")}]}, "serve[0].share"),
        ({"serve": [{"version": "1", "share": 10**400}]}, "serve[0].share"),
        ({"serve": [{"version": "1", "share": -1}]}, "serve[0].share"),
        ({"serve": [{"version": ">", "share": 100}]}, "serve[0].version"),
        ({"serve": [{"version": "1", "share": 50}] * 2}, "serve[1].version"),
        ({"sticky": "cookie"}, "sticky"),
        ({"sticky": ["agent"]}, "sticky"),
        ({"policy": "fastest"}, "policy"),
        ({"policy": 7}, "policy"),
        ({"policy_options": {"speed": 1}}, "policy_options"),
        ({"policy_options": {"rng": 1}}, "policy_options"),
        ({"policy_options": []}, "policy_options"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": 1.5}, "memory_bytes"),
        ({"device": 1}, "device"),
    ],
)
def test_a_bad_document_is_refused_by_path_and_the_old_one_stays(
    changes: dict[str, Any], path: str
) -> None:
    made = table(node("n"))
    old = made.desired("digits")
    with pytest.raises(BadDesiredState) as refused:
        made.apply(document(**changes))
    assert path in [problem.path for problem in refused.value.problems]
    assert made.desired("digits") is old


def test_all_problems_of_a_document_are_named_at_once() -> None:
    with pytest.raises(BadDesiredState) as refused:
        parse_desired({"model": "", "serve": [], "sticky": "x", "device": 3})
    assert {each.path for each in refused.value.problems} == {"model", "serve", "sticky", "device"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
FIELDS = (
    "model", "serve", "sticky", "policy", "policy_options", "memory_bytes", "device",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(json_values | st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_json_is_either_parsed_or_refused_with_a_typed_error(given_document: Any) -> None:
    try:
        state = parse_desired(given_document)
    except BadDesiredState:
        pass
    else:
        assert sum(entry.share for entry in state.serve) == pytest.approx(100)


def test_the_documented_example_is_accepted_and_unknown_fields_are_ignored() -> None:
    example = """{"model": "digits", "serve": [{"version": "1", "share": 90},
        {"version": "2", "share": 10}], "sticky": "agent", "policy": "pull", "policy_options": {},
        "memory_bytes": 0, "device": "cpu", "comment": "later"}"""
    assert parse_desired(json.loads(example)).device == "cpu"


# --- policies over time


def test_a_policy_keeps_what_it_learned_when_only_shares_change() -> None:
    made = table(*BOTH, policy="adaptive")
    first = route(made, request()).policy
    made.apply(document(serve=CANARY, policy="adaptive"))
    assert route(made, request()).policy is first
    made.apply(document(policy="adaptive", policy_options={"epsilon": 0.5}))
    assert route(made, request()).policy is not first


def test_an_answer_counts_for_the_policy_that_sent_the_request() -> None:
    made = table(node("n"), policy="least-connections")
    found = route(made, request())
    made.sent(found, 0.0)
    assert found.policy.estimates.count("n") == 1
    made.apply(document(policy="round-robin"))
    made.done(found, 0.1, 0.1, True)
    assert found.policy.estimates.count("n") == 0


def test_the_yield_of_an_adaptive_policy_reaches_the_table() -> None:
    made = table(node("n"), policy="adaptive", policy_options={"p99_bound_s": 0.01})
    for tick in range(100):
        found = route(made, request(id=str(tick)))
        made.sent(found, tick * 0.01)
        made.done(found, tick * 0.01, 0.5, True)
    ((model, stage, event),) = made.take_events()
    assert (model, stage) == ("digits", 1)
    assert isinstance(event, SafetyEvent)


def test_versions_named_by_requests_do_not_grow_the_table_without_bound() -> None:
    made = table(node("n"))

    def size_after(first: int, last: int) -> int:
        for index in range(first, last):
            made.route(request(version=str(index)), 0.0)
        return len(pickle.dumps(made))

    assert size_after(1000, 10_000) < 2 * size_after(0, 1000)


# --- rendezvous


names_of_any_kind = st.text(st.characters(), min_size=1, max_size=6)


@given(st.sets(names_of_any_kind, min_size=1, max_size=10), names_of_any_kind)
def test_when_the_owner_leaves_the_next_in_order_takes_over_and_no_order_changes(
    names: set[str], key: str
) -> None:
    order = rendezvous(key, names)
    assert sorted(order) == sorted(names)
    assert rendezvous(key, names - {order[0]}) == order[1:]


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    assert rendezvous("session", ["a", "b", "c", "d"]) == ["c", "b", "d", "a"]
