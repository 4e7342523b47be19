"""What a node says of itself: it fits, it comes back as it was said, and lies are refused."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.fleet.advertised import (
    LOAD_FIELDS,
    MAX_CANDIDATES,
    MAX_COUNT,
    MAX_STAGE,
    MAX_STAGES,
    MAX_TIME,
    MOST_MARKS,
    Where,
    candidates,
    holds_entry,
    load_entries,
    serves_entries,
    serving,
    valid,
)
from swarm.gossip import LAN, Gossip, PeerView

names = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
wheres = st.tuples(names | st.just("m"), names | st.just("1"), st.integers(0, MAX_STAGE))
counts, times = st.integers(0, MAX_COUNT), st.integers(0, MAX_TIME)
loads = st.tuples(counts, counts, *[times] * 6).map(list)
LONGEST = ("m" * 128, "v" * 128)
HEAVIEST = [MAX_COUNT] * 2 + [MAX_TIME] * 6


def as_read(entries: dict[str, Any]) -> dict[str, Any]:
    """As a peer decodes it: lists are tuples."""
    return {
        key: msgpack.unpackb(msgpack.packb(value), use_list=False) for key, value in entries.items()
    }


def peer(values: dict[str, Any], state: Any = "alive") -> PeerView:
    return PeerView("node", state, 1, 1, values | {"priority": 0})


def seen(values: dict[str, Any]) -> dict[Where, list[int]]:
    """The stages and loads that routing reads."""
    found: dict[Where, list[int]] = {}
    for candidate in candidates({"node": peer(values)}):
        [(model, versions)] = candidate.versions.items()
        [version] = versions
        timings = [
            candidate.compute_ewma_s,
            candidate.compute_p50_s,
            candidate.compute_p99_s,
            candidate.queue_ewma_s,
            candidate.queue_p50_s,
            candidate.queue_p99_s,
        ]
        found[model, version, candidate.stage] = [
            int(candidate.load),
            int(candidate.in_flight),
            *(round(seconds * 1e6) for seconds in timings),
        ]
    return found


# --- what is said -------------------------------------------------------------------------


@settings(deadline=None)
@given(st.dictionaries(wheres, st.none() | loads, max_size=40))
def test_what_a_node_says_is_believed_and_read_as_it_was_said(
    said: dict[Where, list[int] | None],
) -> None:
    told = {where: numbers for where, numbers in said.items() if numbers is not None}
    entries = serves_entries(said) | load_entries(told)
    read = as_read(entries)
    for key, value in read.items():
        assert len(key) <= 64
        assert len(msgpack.packb(value)) <= LAN.value_bytes
        assert valid(key, entries[key])
        assert valid(key, value)
    idle = [0] * LOAD_FIELDS
    assert seen(read) == {where: numbers or idle for where, numbers in said.items()}
    for where in said:
        assert [p.node for p in serving([peer(read)], *where)] == ["node"]
        model, version, stage = where
        if (model, version, stage + 1) not in said:
            assert serving([peer(read)], model, version, stage + 1) == []


@given(st.sets(wheres, max_size=20), st.sets(wheres, max_size=20))
def test_a_version_that_is_served_no_more_leaves_no_key_behind(
    before: set[Where], after: set[Where]
) -> None:
    """Keys follow from what is served: what is not written again is to be deleted."""
    old, new = serves_entries(before), serves_entries(after)
    values = {key: value for key, value in (old | new).items() if key in new}
    assert set(seen(as_read(values))) == after


def test_nothing_grows_with_the_number_of_stages_beyond_what_gossip_carries() -> None:
    highest = range(MAX_STAGE + 1 - 253, MAX_STAGE + 1)
    stages = [(*LONGEST, stage) for stage in highest]
    for entries in (serves_entries(stages), load_entries(dict.fromkeys(stages, HEAVIEST))):
        assert max(len(msgpack.packb(value)) for value in entries.values()) <= LAN.value_bytes
    [most] = serves_entries([(*LONGEST, stage) for stage in range(1, MAX_STAGES + 1)]).values()
    assert len(msgpack.packb(most)) <= LAN.value_bytes


def test_a_load_out_of_range_is_told_as_the_nearest_in_it() -> None:
    where = ("m", "1", 7)
    [(key, value)] = load_entries({where: [-1, 10**12, -5, *[10**15] * 5]}).items()
    assert value == [[7, 0, MAX_COUNT, 0, *[MAX_TIME] * 5]]
    assert valid(key, value)


def test_two_versions_of_a_stage_have_loads_of_their_own() -> None:
    busy, idle = [9] * LOAD_FIELDS, [1] * LOAD_FIELDS
    said = {("m", "1", 1): busy, ("m", "2", 1): idle}
    assert seen(as_read(serves_entries(said) | load_entries(said))) == said


# --- what is believed ---------------------------------------------------------------------


def gossip() -> Gossip:
    return Gossip("a", 1, Random(1), validator=valid)


def test_the_loads_of_150_stages_fit_into_one_nodes_gossip_at_the_worst() -> None:
    node = gossip()
    stages = [(*LONGEST, stage) for stage in range(1, 151)]
    entries = serves_entries(stages) | load_entries(dict.fromkeys(stages, HEAVIEST))
    for key, value in entries.items():
        node.set(key, value, 0.0)
    values = node.peer("a", 0.0)
    assert values is not None
    assert len(seen(dict(values.values))) == 150


def test_a_release_every_two_minutes_leaves_room_for_the_next_one() -> None:
    """Deleted keys are remembered for an hour, and take room."""
    node, told = gossip(), set[str]()
    for release in range(60):
        stages = [("model", f"v{release}", stage) for stage in range(1, 61)]
        entries = serves_entries(stages) | load_entries(dict.fromkeys(stages, HEAVIEST))
        for key in told - entries.keys():
            node.delete(key, release * 120.0)
        for key, value in entries.items():
            node.set(key, value, release * 120.0)
        told = set(entries)
    view = node.peer("a", 7200.0)
    assert view is not None
    assert set(seen(dict(view.values))) == set(stages)


SERVES_KEY, LOAD_KEY = (
    *serves_entries([("m", "1", 1)]),
    *load_entries({("m", "1", 1): [0] * 8}),
)
HOLDS_KEY, HOLDS = holds_entry(("m", "1", 1), 3, 8, True, bytes(96))
ROW = [1, *[0] * 8]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (LOAD_KEY, None),
        (LOAD_KEY, 7),
        (LOAD_KEY, ROW),
        (LOAD_KEY, [ROW, ROW]),
        (LOAD_KEY, [[2, *[0] * 8], ROW]),
        (LOAD_KEY, [ROW[:-1]]),
        (LOAD_KEY, [[*ROW, 0]]),
        (LOAD_KEY, [[1, float("nan"), *[0] * 7]]),
        (LOAD_KEY, [[1, True, *[0] * 7]]),
        (LOAD_KEY, [[True, *[0] * 8]]),
        (LOAD_KEY, [[1, -1, *[0] * 7]]),
        (LOAD_KEY, [[1, MAX_COUNT + 1, *[0] * 7]]),
        (LOAD_KEY, [[1, 0, 0, MAX_TIME + 1, *[0] * 5]]),
        (LOAD_KEY, [[16, *[0] * 8]]),
        (LOAD_KEY, [[-1, *[0] * 8]]),
        (LOAD_KEY, [["1", *[0] * 8]]),
        (LOAD_KEY, {"1": [0] * 8}),
        ("load/", [ROW]),
        ("load/0", [ROW]),
        (LOAD_KEY[:-1], [ROW]),
        (LOAD_KEY + "0", [ROW]),
        (LOAD_KEY + "/0", [ROW]),
        (LOAD_KEY[:-1] + "00", [ROW]),
        (LOAD_KEY[:-1] + "-0", [ROW]),
        (LOAD_KEY[:-1] + "257", [[257 * 16, *[0] * 8]]),
        (HOLDS_KEY, None),
        (HOLDS_KEY, [3, 8]),
        (HOLDS_KEY, [3, -8, True, b""]),
        (HOLDS_KEY, [True, 8, True, b""]),
        (HOLDS_KEY, [3, 8, 1, b""]),
        (HOLDS_KEY, [3, 8, True, ""]),
        (HOLDS_KEY, [3, 8, True, bytes(MOST_MARKS + 1)]),
        ("holds/m/1", HOLDS),
        (SERVES_KEY, None),
        (SERVES_KEY, "everything"),
        (SERVES_KEY, ["m", "1"]),
        (SERVES_KEY, ["m", "1", []]),
        (SERVES_KEY, ["m", "1", "1"]),
        (SERVES_KEY, ["m", "1", ["1"]]),
        (SERVES_KEY, ["m", "1", [-1]]),
        (SERVES_KEY, ["m", "1", [True]]),
        (SERVES_KEY, ["m", "1", [1, 1]]),
        (SERVES_KEY, ["m", "1", [2, 1]]),
        (SERVES_KEY, ["m", "1", [MAX_STAGE + 1]]),
        (SERVES_KEY, ["m", "1", list(range(MAX_STAGES + 1))]),
        (SERVES_KEY, ["m", "1", [1], 0]),
        (SERVES_KEY, ["m", "2", [1]]),
        (SERVES_KEY, ["n", "1", [1]]),
        (SERVES_KEY, ["m", "*", [1]]),
        (SERVES_KEY, ["a.b", "1", [1]]),
        (SERVES_KEY, [["m"], "1", [1]]),
        ("serves/", ["m", "1", [1]]),
        ("serves/../x", ["m", "1", [1]]),
    ],
)
def test_entries_that_no_node_writes_are_refused(key: str, value: object) -> None:
    assert valid(SERVES_KEY, ["m", "1", [1]])
    assert valid(LOAD_KEY, [ROW])
    assert valid(HOLDS_KEY, HOLDS)
    assert not valid(key, value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [SERVES_KEY, LOAD_KEY, HOLDS_KEY, "serves", "load", "serves/x", "load/x/0", "other/x"]
)


@given(st.dictionaries(KEYS | st.text(), VALUES, max_size=6))
def test_whatever_a_peer_says_routing_reads_what_was_believed_without_an_error(
    said: dict[str, Any],
) -> None:
    believed = {key: value for key, value in said.items() if valid(key, value)}
    assert isinstance(seen(believed), dict)
    assert serving([peer(believed)], "m", "1", 2**70) == []


def test_what_a_language_models_stage_holds_is_read_of_that_stage_alone() -> None:
    stages = serves_entries([("m", "1", 1), ("m", "1", 2)])
    said = peer(as_read(stages | {HOLDS_KEY: HOLDS}))
    assert [each.holds for each in serving([said], "m", "1", 1)] == [(3, 8, True, bytes(96))]
    assert [each.holds for each in serving([said], "m", "1", 2)] == [(0, 0, False, b"")]


def test_a_load_that_names_stages_nobody_serves_adds_none() -> None:
    said = load_entries({("m", "1", 1): [1] * 8, ("m", "1", 2): [1] * 8})
    assert seen(as_read(said)) == {}
    assert set(seen(as_read(said | serves_entries([("m", "1", 2)])))) == {("m", "1", 2)}


def test_a_node_that_claims_to_serve_everything_does_not_flood_the_routing() -> None:
    stages = [("m", str(v), stage) for v in range(40) for stage in range(MAX_STAGES)]
    values = serves_entries(stages)
    assert all(valid(key, value) for key, value in values.items())
    assert len(candidates({"node": peer(values)})) == MAX_CANDIDATES
