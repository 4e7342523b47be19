import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.routing import (
    ANY,
    BadPolicyOption,
    Candidate,
    Estimates,
    Policy,
    PolicyLoadFailed,
    RequestInfo,
    UnknownPolicy,
    policy,
    policy_names,
    registry,
    rendezvous,
)
from swarm.routing.adaptive import Adaptive
from swarm.routing.admitting import TokenBuckets
from swarm.routing.basic import ConsistentHash
from swarm.routing.candidate import Candidates

REQUEST = RequestInfo("r", "m", "1")
Send = Callable[[Policy, Sequence[Candidate], int], Counter[str]]


def nodes(count: int, **given: object) -> list[Candidate]:
    return [
        replace(Candidate(f"n{index}", compute_ewma_s=0.005), **given)  # type: ignore[arg-type]
        for index in range(count)
    ]


def send(chosen: Policy, candidates: Sequence[Candidate], count: int) -> Counter[str]:
    """Send without ever getting an answer."""
    lanes: Counter[str] = Counter()
    for index in range(count):
        request = replace(REQUEST, id=str(index))
        lane = chosen.choose(candidates, request, now=0.0)
        assert lane is not None
        chosen.sent(lane, request, 0.0)
        lanes[lane] += 1
    return lanes


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_refuses_when_there_is_no_node(name: str) -> None:
    assert policy(name, rng=Random(1)).choose([], REQUEST, 0.0) is None


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(policy_names()),
    st.lists(
        st.tuples(st.floats(), st.floats(), st.floats(), st.floats(0, 5)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 1000),
)
def test_every_policy_chooses_a_candidate_or_the_shared_lane_whatever_gossip_says(
    name: str, described: list[tuple[float, float, float, float]], seed: int
) -> None:
    candidates = [
        Candidate(f"n{index}", load=load, compute_ewma_s=time, weight=weight, heard=heard)
        for index, (load, time, weight, heard) in enumerate(described)
    ]
    chosen = policy(name, rng=Random(seed))
    for index in range(30):
        request = replace(REQUEST, id=str(index), session=f"s{index % 3}")
        lane = chosen.choose(candidates, request, index * 0.01)
        assert lane in {ANY, *(candidate.node for candidate in candidates)}
        chosen.sent(lane, request, index * 0.01)
        if index % 2:
            chosen.done(lane, request, index * 0.01, 0.01, index % 3 > 0)


@pytest.mark.parametrize("name", policy_names())
def test_the_same_dice_give_the_same_choices(name: str) -> None:
    first = send(policy(name, rng=Random(7)), nodes(5), 50)
    assert first == send(policy(name, rng=Random(7)), nodes(5), 50)


def test_pull_takes_the_shared_lane_and_blindly_only_if_told_so() -> None:
    assert policy("pull").choose(nodes(3), REQUEST, 0.0) == ANY
    assert policy("pull", blind=True).choose([], REQUEST, 0.0) == ANY


def test_round_robin_gives_each_node_the_same_and_starts_anywhere() -> None:
    lanes = send(policy("round-robin", rng=Random(1)), nodes(4), 40)
    assert set(lanes.values()) == {10}
    starts = {
        policy("round-robin", rng=Random(seed)).choose(nodes(4), REQUEST, 0.0) for seed in range(40)
    }
    assert len(starts) == 4


def test_least_connections_levels_our_own_requests_by_weight() -> None:
    candidates = [*nodes(2), Candidate("big", weight=2.0)]
    assert send(policy("least-connections", rng=Random(1)), candidates, 400) == {
        "n0": 100,
        "n1": 100,
        "big": 200,
    }


def test_two_choices_spread_far_better_than_one() -> None:
    lanes = send(policy("power-of-two", rng=Random(3)), nodes(50), 5000)
    assert max(lanes.values()) - min(lanes.values()) <= 12  # at random it would be about 45


def test_weighted_least_pending_follows_speed_weight_and_load() -> None:
    fast, slow = Candidate("fast", compute_ewma_s=0.002), Candidate("slow", compute_ewma_s=0.008)
    lanes = send(policy("weighted-least-pending", rng=Random(1)), [fast, slow], 100)
    assert lanes["fast"] == pytest.approx(80, abs=2)
    queued = [Candidate("idle", compute_ewma_s=0.005), replace(fast, load=30.0)]
    assert policy("weighted-least-pending").choose(queued, REQUEST, 0.0) == "idle"


def test_a_node_whose_speed_is_unknown_is_neither_shunned_nor_flooded() -> None:
    candidates = [*nodes(3), Candidate("new")]
    lanes = send(policy("weighted-least-pending", rng=Random(1)), candidates, 400)
    assert lanes["new"] == 100


def test_our_requests_count_at_once_and_news_only_on_average() -> None:
    believed, told = Estimates(), Candidate("n", load=4.0, heard=1.0)
    believed.learn([told])
    assert believed.load("n") == 4.0
    believed.sent("n")
    believed.learn([told])
    assert believed.load("n") == 5.0, "old news change nothing"
    believed.learn([replace(told, load=101.0, heard=1.1)])
    assert believed.load("n") == pytest.approx(1 + 4 + 9.6)
    believed.done("n")
    believed.done("n")
    assert believed.count("n") == 0
    believed.retain(set())
    assert believed.load("n") == 0.0


# --- consistent-hash


@given(st.integers(2, 12), st.integers(0, 10_000), st.floats(1.05, 3))
@settings(max_examples=50, deadline=None)
def test_no_node_ever_holds_more_than_its_bounded_share(
    count: int, seed: int, balance: float
) -> None:
    chosen, candidates = ConsistentHash(balance=balance, rng=Random(seed)), nodes(count)
    held: Counter[str] = Counter()
    for index in range(150):
        request = replace(REQUEST, id=str(index), session=f"{seed}-{index % 5}")
        lane = chosen.choose(candidates, request, 0.0)
        assert lane is not None
        chosen.sent(lane, request, 0.0)
        held[lane] += 1
        assert held[lane] <= ceil(balance * (index + 1) / count + 1e-9)


def owners(candidates: Sequence[Candidate], keys: int = 1000) -> list[str | None]:
    chosen = ConsistentHash(rng=Random(1))
    return [
        chosen.choose(candidates, replace(REQUEST, session=f"s{key}"), 0.0) for key in range(keys)
    ]


def test_only_the_keys_of_a_node_that_left_move() -> None:
    before, after = owners(nodes(8)), owners(nodes(7))
    moved = {old for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {"n7"}


def test_a_node_that_joins_takes_its_fair_share_and_nothing_else_moves() -> None:
    pairs = list(zip(owners(nodes(7)), owners(nodes(8)), strict=True))
    assert {new for old, new in pairs if old != new} == {"n7"}
    assert sum(old != new for old, new in pairs) == pytest.approx(1000 / 8, rel=0.25)


def test_weight_decides_the_share_of_keys() -> None:
    counts = Counter(owners([*nodes(2), Candidate("big", weight=2.0)], keys=4000))
    assert counts["big"] == pytest.approx(2000, rel=0.08)


def test_the_key_is_the_session_or_else_the_agent_or_else_the_request() -> None:
    chosen, candidates = ConsistentHash(rng=Random(1)), nodes(8)

    def lanes(given: list[RequestInfo]) -> int:
        return len({chosen.choose(candidates, request, 0.0) for request in given})

    assert lanes([RequestInfo(str(i), "m", agent=str(i), session="s") for i in range(50)]) == 1
    assert lanes([RequestInfo(str(i), "m", agent="a") for i in range(50)]) == 1
    assert lanes([RequestInfo(str(i), "m") for i in range(50)]) > 4


def test_the_owner_is_the_first_in_the_rendezvous_order() -> None:
    candidates = nodes(9)
    for key, owner in enumerate(owners(candidates, keys=200)):
        assert owner == rendezvous(f"s{key}", [candidate.node for candidate in candidates])[0]


# --- token-bucket


def test_a_node_gets_its_burst_and_the_rest_overflows() -> None:
    lanes = send(TokenBuckets(burst=4, rng=Random(1)), nodes(3), 30)
    assert all(lanes[f"n{index}"] <= 4 for index in range(3))
    assert lanes[ANY] >= 18


def test_admission_refuses_when_told_to() -> None:
    chosen = TokenBuckets(burst=1, overflow="refuse", rng=Random(1))
    assert [chosen.choose(nodes(1), REQUEST, 0.0) for _ in range(3)].count(None) >= 2


def test_a_long_queue_slows_the_refill_and_a_short_one_speeds_it_up() -> None:
    rates = []
    for queue in (0.0, 2.0, 12.0, 100.0):
        chosen = TokenBuckets(rng=Random(1))
        for tick in range(20):
            told = Candidate("n", load=queue, compute_ewma_s=0.005, heard=tick * 0.1)
            chosen.choose([told], REQUEST, tick * 0.1)
            chosen.sent("n", REQUEST, tick * 0.1)
        rates.append(chosen.rate("n"))
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[1] > rates[2] > rates[3] > 0


# --- adaptive


def teach(chosen: Adaptive, slow: str, took: float, start: float, seconds: float) -> Counter[str]:
    """100 requests a second, one at a time; `slow` ("all": each) takes `took` seconds, the others
    5 ms."""
    lanes: Counter[str] = Counter()
    for tick in range(int(seconds * 100)):
        now = start + tick / 100
        told = [replace(node, heard=now // 0.1) for node in nodes(3)]
        request = replace(REQUEST, id=f"{start}-{tick}")
        lane = chosen.choose(told, request, now)
        assert lane is not None
        chosen.sent(lane, request, now)
        lanes[lane] += 1
        chosen.done(lane, request, now + 0.005, took if slow in (lane, "all") else 0.005, True)
    return lanes


def test_it_learns_to_avoid_a_node_whose_gossip_says_it_is_as_fast_as_the_others() -> None:
    chosen = Adaptive(p99_bound_s=10.0, rng=Random(1))
    teach(chosen, "n1", 0.050, 0.0, 3.0)
    assert teach(chosen, "n1", 0.050, 10.0, 3.0)["n1"] <= 15
    assert not chosen.yielded


def test_it_yields_when_its_p99_breaks_the_bound_and_says_so() -> None:
    chosen = Adaptive(p99_bound_s=0.020, epsilon=0.2, rng=Random(1))
    teach(chosen, "n1", 0.050, 0.0, 2.0)
    assert chosen.yielded
    (event,) = chosen.take_events()
    assert event.kind == "yielded"
    assert event.p99_s > event.bound_s == 0.020
    assert chosen.take_events() == []


def test_it_returns_once_the_hold_is_over_and_the_p99_is_well_within_the_bound() -> None:
    chosen = Adaptive(p99_bound_s=0.020, epsilon=0.0, hold_s=3.0, window_s=2.0, rng=Random(1))
    teach(chosen, "all", 0.050, 0.0, 1.0)
    assert chosen.yielded
    teach(chosen, "", 0.005, 1.0, 2.4)
    assert chosen.yielded  # well again, and the hold is not over
    teach(chosen, "", 0.005, 3.4, 2.0)
    assert not chosen.yielded
    assert [event.kind for event in chosen.take_events()] == ["yielded", "returned"]


def test_it_stays_away_while_the_p99_is_still_bad_and_longer_after_a_relapse() -> None:
    chosen = Adaptive(p99_bound_s=0.020, hold_s=1.0, window_s=1.0, rng=Random(1))
    holds = []
    for start in (0.0, 12.0, 24.0):
        teach(chosen, "all", 0.050, start, 6.0)
        assert chosen.yielded
        teach(chosen, "", 0.005, start + 6.0, 6.0)
        yielded, returned = chosen.take_events()
        assert (yielded.kind, returned.kind) == ("yielded", "returned")
        assert returned.now > start + 6.0
        holds.append(yielded.hold_s)
    assert holds == [1.0, 2.0, 4.0]


def test_while_it_yields_it_decides_as_weighted_least_pending() -> None:
    chosen = Adaptive(rng=Random(1))
    chosen.yielded = True
    told = [Candidate("busy", load=20, compute_ewma_s=0.005), Candidate("x", compute_ewma_s=0.006)]
    assert {chosen.choose(told, REQUEST, 0.0) for _ in range(50)} == {"x"}


def test_a_failure_counts_as_the_whole_budget() -> None:
    chosen = Adaptive(p99_bound_s=0.5, rng=Random(1))
    for tick in range(60):
        request = replace(REQUEST, id=str(tick), remaining_s=1.0)
        lane = chosen.choose(nodes(2), request, tick * 0.01)
        assert lane is not None
        chosen.sent(lane, request, tick * 0.01)
        chosen.done(lane, request, tick * 0.01, 0.001, ok=False)
    assert chosen.yielded


def test_what_is_kept_for_nodes_that_left_is_forgotten() -> None:
    chosen = Adaptive(rng=Random(1))
    teach(chosen, "", 0.0, 0.0, 0.5)
    chosen.retain({"n0"})
    kept = pickle.dumps(chosen)
    assert b"n0" in kept
    assert b"n1" not in kept


# --- registry


class Mine(Policy):
    name = "mine"

    def choose(self, candidates: Candidates, request: RequestInfo, now: float) -> str | None:
        return candidates[0].node if candidates else None


def offer(monkeypatch: pytest.MonkeyPatch, **points: str) -> list[int]:
    """Installs entry points; the list grows with each look-up."""
    lookups: list[int] = []

    def entry_points(**wanted: str) -> EntryPoints:
        lookups.append(1)
        found = [EntryPoint(name, value, "swarm.routing") for name, value in points.items()]
        return EntryPoints(found).select(**wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return lookups


def test_a_users_policy_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, mine=f"{__name__}:Mine")
    assert isinstance(policy("mine"), Mine)
    assert "mine" in policy_names()


def test_entry_points_are_never_looked_up_for_built_in_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups = offer(monkeypatch, pull="no_such_module:Evil")
    for name in registry.BUILT_IN:
        policy(name)
    assert lookups == []


def test_an_unknown_name_lists_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch)
    with pytest.raises(UnknownPolicy, match="power-of-two") as refused:
        policy("fastest")
    assert refused.value.name == "fastest"


@pytest.mark.parametrize("value", ["no_such_module:X", f"{__name__}:nodes", f"{__name__}:nowhere"])
def test_an_entry_point_that_gives_no_policy_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    offer(monkeypatch, broken=value)
    with pytest.raises((PolicyLoadFailed, BadPolicyOption), match="broken"):
        policy("broken")


def test_bad_options_are_refused_with_the_policys_name() -> None:
    with pytest.raises(BadPolicyOption, match=r"consistent-hash.*balance"):
        policy("consistent-hash", balance=1.0)
    with pytest.raises(BadPolicyOption, match=r"pull.*speed"):
        policy("pull", speed=3)
    with pytest.raises(BadPolicyOption, match="adaptive"):
        policy("adaptive", epsilon="much")
