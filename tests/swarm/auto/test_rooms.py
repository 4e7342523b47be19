"""Memory is granted once: never more than there is, to models of high priority first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarm.auto.advertised import uses_entry, uses_of
from swarm.auto.rooms import RoomUse, allot
from swarm.fleet.advertised import valid

SIZES = st.integers(0, 60)
USES = st.lists(
    st.builds(
        RoomUse,
        node=st.sampled_from("xyz"),
        model=st.sampled_from("abcde"),
        version=st.sampled_from("12"),
        priority=st.just(0),
        claimed=SIZES,
        held=SIZES,
    ),
    max_size=8,
    unique_by=lambda u: (u.node, u.model, u.version),
).flatmap(
    lambda uses: st.lists(st.integers(0, 2), min_size=5, max_size=5).map(
        lambda by: [replace(u, priority=by["abcde".index(u.model)]) for u in uses]
    )
)


@given(st.integers(0, 150), USES)
def test_no_more_is_granted_than_there_is_and_than_is_claimed(
    total: int, uses: list[RoomUse]
) -> None:
    found = allot(total, uses)
    granted = [found.of(u.node, u.model, u.version) for u in uses]
    assert sum(granted) + found.left() <= total
    for use, size in zip(uses, granted, strict=True):
        assert 0 <= size <= max(use.claimed, use.held)
    assert allot(total, reversed(uses)) == found, "whoever reads them in another order"


@given(st.integers(0, 150), USES)
def test_what_a_model_is_granted_depends_on_no_lower_one(total: int, uses: list[RoomUse]) -> None:
    found = allot(total, uses)
    for priority in range(3):
        higher = allot(total, [u for u in uses if u.priority >= priority])
        for use in higher.uses:
            who = use.node, use.model, use.version
            assert higher.of(*who) == found.of(*who)
        assert higher.left() == found.left(priority)


@given(st.integers(0, 150), USES)
def test_what_is_held_is_not_taken_by_a_claim_of_the_same_priority(
    total: int, uses: list[RoomUse]
) -> None:
    uses = [replace(use, priority=1) for use in uses]
    if sum(use.held for use in uses) <= total:
        found = allot(total, uses)
        for use in uses:
            assert found.of(use.node, use.model, use.version) >= use.held
            assert not found.gives_way(use.node, use.model, use.version)


def test_a_lower_model_gives_way_only_while_a_higher_one_waits() -> None:
    low = RoomUse("x", "low", "1", 0, 60, 60)
    waits = RoomUse("y", "high", "1", 5, 60, 0)
    found = allot(100, [low, waits])
    assert found.gives_way("x", "low", "1")
    assert not found.may_load("y", "high", "1", 60), "the other one holds it still"
    assert allot(100, [replace(low, held=0, claimed=0), waits]).may_load("y", "high", "1", 60)
    # What was measured as free is less than both hold: nobody waits, nobody lets go.
    assert not allot(90, [low, replace(waits, held=60)]).gives_way("x", "low", "1")


def test_of_two_claims_that_do_not_fit_together_one_is_withdrawn() -> None:
    both = [RoomUse(node, model, "1", 0, 60, 0) for node, model in (("x", "a"), ("y", "b"))]
    found = allot(100, both)
    assert [found.may_load(u.node, u.model, "1", 60) for u in both] == [True, False]


@given(USES)
def test_what_is_told_is_what_is_read(uses: list[RoomUse]) -> None:
    own = [use for use in uses if use.node == "x"]
    entry = uses_entry(own)
    assert valid("uses", entry)
    assert uses_of({"uses": entry}, "x") == own


def test_of_too_many_versions_the_last_one_counts_the_rest() -> None:
    entry = uses_entry([RoomUse("x", "m", str(n), 0, 2, 1) for n in range(40)])
    assert valid("uses", entry)
    assert [sum(row[at] for row in entry) for at in (3, 4)] == [80, 40]


def test_gossip_refuses_what_is_no_use_and_no_pool() -> None:
    for wrong in ("x", [1], [["m", "1", 0, 1]], [["m", "1", 5000, 0, 0]], [["m", "1", 0, -1, 0]]):
        assert not valid("uses", wrong)
    for wrong in ("x", [["a"]], [["a", -1]], [["a" * 300, 1]], [["a", 1]] * 9):
        assert not valid("pools", wrong)
