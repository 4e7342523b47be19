"""Whatever a node does that was given a request, the request is answered, by it or by a witness."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import DecodeError
from swarm.fleet.advertised import EVERY_MODEL, Answerer
from swarm.requests.witness import (
    PATIENCE,
    SECOND_PATIENCE,
    SILENT_FOR,
    Notice,
    RequestsInHand,
    Witness,
    key_of,
    witnesses,
)

ONE, TWO = key_of("_INBOX.a.1", b"one"), key_of("_INBOX.a.1", b"two")


def here(node: str) -> bool:
    return False


def test_a_request_that_nobody_begins_is_taken_once_when_patience_ends() -> None:
    witness = Witness[str]()
    witness.heard(ONE, "one", 3, 0.0)
    assert witness.due(PATIENCE, here, PATIENCE) == []
    (taken,) = witness.due(PATIENCE, here, PATIENCE + 0.1)
    assert (taken.request, taken.node) == ("one", "")
    assert taken.waited == pytest.approx(PATIENCE + 0.1)
    assert witness.due(PATIENCE, here, 60.0) == []


@pytest.mark.parametrize("first", ["copy", "notice"])
def test_a_request_that_was_answered_is_forgotten_whatever_came_first(first: str) -> None:
    witness = Witness[str]()
    steps = [lambda: witness.heard(ONE, "one", 3, 0.0)]
    steps.insert(first == "copy", lambda: witness.told(Notice("n", (), (ONE,)), 0.0))
    for step in steps:
        step()
    assert len(witness) == 0
    assert witness.due(PATIENCE, here, 60.0) == []


def test_a_long_run_is_left_to_its_node_as_long_as_that_gives_signs() -> None:
    witness = Witness[str]()
    witness.heard(ONE, "one", 3, 0.0)
    for tenths in range(1, 600):
        witness.told(Notice("n", (ONE,)), tenths / 10)
        assert witness.due(PATIENCE, here, tenths / 10) == []
    assert witness.due(PATIENCE, here, 59.9 + SILENT_FOR) == []
    assert [each.node for each in witness.due(PATIENCE, here, 60.0 + SILENT_FOR)] == ["n"]


def test_what_a_dead_node_had_in_hand_is_taken_at_once() -> None:
    witness = Witness[str]()
    for key, request in ((ONE, "one"), (TWO, "two")):
        witness.heard(key, request, 3, 0.0)
    witness.told(Notice("dead", (ONE,)), 0.05)
    witness.told(Notice("alive", (TWO,)), 0.05)
    assert [t.request for t in witness.due(PATIENCE, lambda node: node == "dead", 0.1)] == ["one"]


def test_what_a_node_has_let_go_without_an_answer_is_taken() -> None:
    """It lost its connection: its next notice has the request neither in hand nor answered."""
    witness, hand = Witness[str](), RequestsInHand("n")
    witness.heard(ONE, "one", 3, 0.0)
    hand.began(ONE)
    witness.told(hand.notice, 0.05)
    hand.told()
    hand.dropped(ONE)
    witness.told(hand.notice, 0.1)
    assert [each.request for each in witness.due(PATIENCE, here, 0.1)] == ["one"]


def test_the_second_witness_leaves_to_the_first_what_that_has_begun() -> None:
    first, second = Witness[str](), Witness[str]()
    for witness in (first, second):
        witness.heard(ONE, "one", 3, 0.0)
    assert len(first.due(PATIENCE, here, 0.4)) == 1
    second.told(Notice("first", (ONE,)), 0.5)
    assert second.due(SECOND_PATIENCE, here, 1.0) == []
    second.told(Notice("first", (), (ONE,)), 1.1)
    assert second.due(SECOND_PATIENCE, here, 9.0) == []


def test_copies_have_bounded_memory_and_the_oldest_go_first() -> None:
    witness = Witness[int](most_bytes=1000, most_copies=5)
    for number in range(20):
        witness.heard(key_of("r", str(number).encode()), number, 400, 0.0)
    assert len(witness) == 2
    assert witness.dropped == 18
    assert [each.request for each in witness.due(PATIENCE, here, 9.0)] == [18, 19]


def test_a_notice_that_was_not_sent_is_part_of_the_next_one() -> None:
    hand = RequestsInHand("n")
    hand.began(ONE)
    hand.ended(ONE)
    assert hand.notice == hand.notice == Notice("n", (), (ONE,))
    hand.told()
    assert hand.notice == Notice("n")
    assert hand.due is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", Notice("n").encode()[:-1], b"\x83\xa1v\x01\xa4node\xa1n\xa5ended\xc4\x03abc"],
)
def test_a_malformed_notice_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Notice.decode(data)


@given(
    node=st.text(max_size=20),
    in_hand=st.lists(st.binary(min_size=8, max_size=8)),
    ended=st.lists(st.binary(min_size=8, max_size=8)),
)
def test_a_notice_survives_the_wire(node: str, in_hand: list[bytes], ended: list[bytes]) -> None:
    notice = Notice(node, tuple(in_hand), tuple(ended))
    assert Notice.decode(notice.encode()) == notice


def test_requests_that_differ_anywhere_near_an_end_or_in_size_have_different_keys() -> None:
    body = bytes(4096)
    others = [body + b"\0", b"\1" + body[1:], body[:-1] + b"\1"]
    keys = {key_of("r", data) for data in (body, *others)} | {key_of("s", body)}
    assert len(keys) == 5
    assert key_of("r", memoryview(body)) == key_of("r", body)


# --- any course of events -----------------------------------------------------------------


@dataclass
class World:
    """Two nodes and their witnesses on one clock: `a` may hang or die, `b` lives."""

    now: float = 0.0
    hung: bool = False
    hands: dict[str, RequestsInHand] = field(
        default_factory=lambda: {n: RequestsInHand(n) for n in "ab"}
    )
    copies: Witness[int] = field(default_factory=Witness)  # of b
    work: list[tuple[float, str, int]] = field(default_factory=list)  # until, node, request
    answered: set[int] = field(default_factory=set)

    def give(self, node: str, number: int, takes: float) -> None:
        """The server gives a request to one, and a copy to the witness."""
        key = key_of("r", str(number).encode())
        self.copies.heard(key, number, 8, self.now)
        if node == "b" or not self.hung:
            self.begin(node, number, takes)

    def begin(self, node: str, number: int, takes: float) -> None:
        self.hands[node].began(key_of("r", str(number).encode()))
        self.work.append((self.now + takes, node, number))

    def turn(self) -> None:
        """Fifty milliseconds pass."""
        self.now += 0.05
        done = [w for w in self.work if w[0] <= self.now and not (self.hung and w[1] == "a")]
        for work in done:
            self.work.remove(work)
            self.answered.add(work[2])
            self.hands[work[1]].ended(key_of("r", str(work[2]).encode()))
        for node, hand in self.hands.items():
            if not (self.hung and node == "a"):
                self.copies.told(hand.notice, self.now)
                hand.told()
        for taken in self.copies.due(PATIENCE, lambda node: False, self.now):
            self.begin("b", taken.request, 0.05)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 1.5), st.integers(0, 4)), max_size=30),
    st.integers(0, 60),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_each_request_is_answered_whenever_the_other_node_hangs_and_wakes(
    given_: list[tuple[str, float, int]], hangs_at: int, wakes_after: int | None
) -> None:
    world, turn = World(), 0

    def pass_time(turns: int) -> None:
        nonlocal turn
        for _ in range(turns):
            world.turn()
            turn += 1
            if turn >= hangs_at:
                world.hung = wakes_after is None or turn < hangs_at + wakes_after

    for number, (node, takes, pause) in enumerate(given_):
        world.give(node, number, takes)
        pass_time(pause)
    pass_time(200)
    assert world.answered == set(range(len(given_)))
    assert len(world.copies) == 0


# --- who is a witness ---------------------------------------------------------------------


def test_two_of_those_that_serve_the_model_are_witnesses_and_gateways_where_there_are_none() -> (
    None
):
    shard, cover = Answerer("shard", "m", True), Answerer("cover", "m", True)
    gateway, edge = Answerer("gateway", EVERY_MODEL, True), Answerer("edge", "m", False)
    assert set(witnesses([shard, cover, gateway, edge], ["m"], False)["m"]) == {"shard", "cover"}
    assert witnesses([shard, gateway, edge], ["m"], False)["m"] == ("shard", "gateway")
    assert witnesses([gateway, Answerer("g", EVERY_MODEL, True)], ["m"], False)["m"]


def test_who_answers_alone_needs_no_witness_unless_somebody_died_who_may_only_hang() -> None:
    alone = [Answerer("shard", "m", True), Answerer("other", "n", True)]
    assert witnesses(alone, ["m"], False) == {}
    assert witnesses(alone, ["m"], True)["m"] == ("shard",)


def test_there_is_no_witness_beside_a_node_that_sends_no_notices() -> None:
    able = [Answerer("shard", "m", True), Answerer("cover", "m", True)]
    old = Answerer("old", "m", False, tells=False)
    assert witnesses([*able, old], ["m"], False) == {}
    assert witnesses([*able, Answerer("old", "n", False, tells=False)], ["m"], False)["m"]
