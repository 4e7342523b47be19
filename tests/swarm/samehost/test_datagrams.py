"""A datagram for a burst: whole, in order, and each sender is told whether its message was sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import DecodeError
from swarm.samehost.host_socket import Bundles, frame_head, frames
from swarm.wire.tensors import Part

NAMES = st.from_regex(r"[A-Za-z0-9_.$-]{0,40}", fullmatch=True)
MESSAGES = st.lists(st.tuples(NAMES, NAMES, st.binary(max_size=200)), min_size=1, max_size=20)


class Wire:
    """Takes datagrams, or not."""

    def __init__(self) -> None:
        self.datagrams: list[tuple[str, bytes]] = []
        self.full: set[str] = set()

    def send(self, inbox: str, pieces: Sequence[Part]) -> bool:
        if inbox in self.full:
            return False
        self.datagrams.append((inbox, b"".join(pieces)))
        return True


def put(bundles: Bundles, inbox: str, data: bytes, told: list[bool] | None = None) -> None:
    then = (lambda sent: None) if told is None else told.append
    bundles.add(inbox, frame_head(len(data), "s", ""), [data], then)


def read(datagram: bytes) -> list[bytes]:
    return [data for _, _, _, data in frames(memoryview(datagram))]


@given(MESSAGES)
def test_messages_that_are_sent_together_come_out_whole_and_in_order(
    messages: list[tuple[str, str, bytes]],
) -> None:
    wire = Wire()
    bundles = Bundles(wire.send)
    for subject, reply, data in messages:
        bundles.add("a", frame_head(len(data), subject, reply), [data], lambda sent: None)
    assert wire.datagrams == []
    bundles.flush()
    [(inbox, datagram)] = wire.datagrams
    assert inbox == "a"
    assert [found[1:] for found in frames(memoryview(datagram))] == messages


@given(MESSAGES, st.data())
def test_a_datagram_that_was_cut_is_refused_and_never_misread(
    messages: list[tuple[str, str, bytes]], draw: st.DataObject
) -> None:
    whole = b"".join(frame_head(len(d), s, r) + d for s, r, d in messages)
    cut = draw.draw(st.integers(min_value=0, max_value=len(whole) - 1))
    try:
        found = frames(memoryview(whole[:cut]))
    except DecodeError:
        return
    assert [one[1:] for one in found] == messages[: len(found)], "it was cut between two"


def test_each_process_gets_its_own_and_each_sender_is_told() -> None:
    wire = Wire()
    wire.full = {"b"}
    bundles = Bundles(wire.send)
    told: dict[str, list[bool]] = {"a": [], "b": [], "c": []}
    for number in range(3):
        for inbox in told:
            put(bundles, inbox, b"%d" % number, told[inbox])
    bundles.flush()
    assert [(inbox, read(d)) for inbox, d in wire.datagrams] == [
        ("a", [b"0", b"1", b"2"]),
        ("c", [b"0", b"1", b"2"]),
    ]
    assert told == {"a": [True] * 3, "b": [False] * 3, "c": [True] * 3}
    bundles.flush()
    assert len(wire.datagrams) == 2


def test_a_datagram_that_is_full_goes_and_another_begins() -> None:
    wire = Wire()
    bundles = Bundles(wire.send, 1000)
    for number in range(10):
        put(bundles, "a", b"%d" % number * 300)
    bundles.flush()
    assert max(len(datagram) for _, datagram in wire.datagrams) <= 1000
    got = [data[:1] for _, datagram in wire.datagrams for data in read(datagram)]
    assert got == [b"%d" % number for number in range(10)]


def test_a_callback_may_fill_the_next_datagram_for_the_same_process() -> None:
    wire = Wire()
    bundles = Bundles(wire.send, 1000)
    follows, told = [b"2" * 700, b"3" * 700], []

    def then(sent: bool) -> None:
        put(bundles, "a", follows.pop(0), told)
        if follows:
            put(bundles, "a", follows.pop(0), told)

    bundles.add("a", frame_head(700, "s", ""), [b"1" * 700], then)
    put(bundles, "a", b"4" * 700, told)
    bundles.flush()
    assert told == [True] * 3
    assert max(len(datagram) for _, datagram in wire.datagrams) <= 1000
    got = [data[:1] for _, datagram in wire.datagrams for data in read(datagram)]
    assert got == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("largest", [1000, 10])
def test_a_message_added_by_a_callback_goes_in_the_same_flush(largest: int) -> None:
    wire = Wire()
    bundles = Bundles(wire.send, largest)
    bundles.add(
        "client", frame_head(1, "s", ""), [b"1"], lambda sent: put(bundles, "before", b"done")
    )
    put(bundles, "client", b"2")
    bundles.flush()
    got = [(inbox, data) for inbox, datagram in wire.datagrams for data in read(datagram)]
    assert sorted(got) == [("before", b"done"), ("client", b"1"), ("client", b"2")]
    assert got.index(("client", b"1")) < got.index(("before", b"done"))
