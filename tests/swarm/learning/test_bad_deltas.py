"""What a hostile or broken sender sends is refused, counted by sender, and changes nothing."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_fleet import EAGER, LAYOUT, SCOPE, Fleet, fingerprint

from swarm.learning.consensus.layout import Layout
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.consensus.participant import MOST_WAITING, TELL_EVERY
from swarm.learning.consensus.refusals import HARMLESS, Reason
from swarm.learning.consensus.sparse import top_k
from swarm.learning.consensus.wire import (
    ALL,
    BITS,
    LIST,
    Reference,
    read_tensors,
    tensors_of,
    whole,
)
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList
from swarm.wire.maps import pack

STRANGER = Identity(b"\x77" * 32)
SHAPE = [6, 4]  # of "weight": 24 entries


def fleet(options: LearningOptions = EAGER) -> Fleet:
    """Two nodes that follow each other and have exchanged some deltas."""
    made = Fleet(2, options)
    made.settle()
    for _ in range(10):
        for name in ("node-0", "node-1"):
            made.step(name, np.full(LAYOUT.size, 0.01, np.float32))
        made.settle()
    return made


def weight(indices: list[int], values: bytes, width: int = 4, encoding: int = LIST) -> Any:
    packed = np.array(indices, "<u4").tobytes() if encoding == LIST else bytes(indices)
    return {"weight": [SHAPE, width, encoding, packed, values]}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


Forge = Callable[[Fleet], bytes]


def tensors(made: Any) -> Forge:
    return lambda fleet: fleet.forge("node-0", tensors=made)


def scope(**changes: Any) -> Forge:
    return lambda fleet: fleet.forge("node-0", scope=SCOPE._replace(**changes))


def again(fleet: Fleet) -> bytes:
    return fleet.forge("node-0", sequence=fleet.nodes["node-0"].position[1])


def ahead(fleet: Fleet) -> bytes:
    return fleet.forge("node-0", sequence=fleet.nodes["node-0"].position[1] + 2)


def of_a_run_before(fleet: Fleet) -> bytes:
    return fleet.forge("node-0", run=fleet.nodes["node-0"].position[0] - 1, sequence=999)


def flipped(fleet: Fleet) -> bytes:
    data = bytearray(fleet.forge("node-0", tensors=weight([1], floats(1))))
    data[-20] ^= 1
    return bytes(data)


def by_a_stranger(fleet: Fleet) -> bytes:
    return fleet.forge("node-0", identity=STRANGER)


def of_another_name(fleet: Fleet) -> bytes:
    return fleet.forge("node-0", node="node-7")


def a_gigabyte_by_reference(fleet: Fleet) -> bytes:
    return fleet.forge("node-0", tensors=Reference(1 << 30, bytes(32)))


def a_gigabyte_in_a_header(fleet: Fleet) -> bytes:
    return b"\x84\xa1v\x01\xa1k\xa3abc\xa1s\xc4\x00\xa1b\xc6" + (1 << 30).to_bytes(4, "big") + b"x"


BAD: list[tuple[str, Reason, Forge]] = [
    ("another base", Reason.OTHER_BASE, scope(base=bytes(32))),
    ("another epoch", Reason.OTHER_EPOCH, scope(epoch=1)),
    ("another model", Reason.OTHER_MODEL, scope(model="cats")),
    ("another version", Reason.OTHER_MODEL, scope(version="2")),
    ("another mesh", Reason.OTHER_MODEL, scope(mesh="other")),
    ("a replay", Reason.REPLAYED, again),
    ("a replay of an earlier start", Reason.REPLAYED, of_a_run_before),
    ("out of order", Reason.GAP, ahead),
    ("a forged signature", Reason.FORGED, flipped),
    ("another node's key", Reason.WRONG_SENDER, by_a_stranger),
    ("another node's name", Reason.WRONG_SENDER, of_another_name),
    ("a gigabyte by reference", Reason.TOO_LARGE, a_gigabyte_by_reference),
    ("a gigabyte in a header", Reason.MALFORMED, a_gigabyte_in_a_header),
    ("a large message", Reason.TOO_LARGE, lambda fleet: bytes(100_000)),
    ("noise", Reason.MALFORMED, lambda fleet: b"\xc1noise"),
    ("nothing", Reason.MALFORMED, lambda fleet: b""),
    ("no tensors", Reason.MALFORMED, tensors(None)),
    ("an unknown tensor", Reason.UNKNOWN_TENSOR, tensors({"wait": weight([], b"")["weight"]})),
    ("another shape", Reason.WRONG_SHAPE, tensors({"weight": [[4, 6], 4, LIST, b"", b""]})),
    (
        "a shape of a gigabyte",
        Reason.WRONG_SHAPE,
        tensors({"weight": [[1 << 15, 1 << 15], 4, ALL, b"", b""]}),
    ),
    ("NaN", Reason.NOT_FINITE, tensors(weight([1], floats(float("nan"))))),
    ("infinity", Reason.NOT_FINITE, tensors(weight([1], floats(float("inf"))))),
    (
        "infinity in float16",
        Reason.NOT_FINITE,
        tensors(weight([1], struct.pack("<H", 0x7C00), width=2)),
    ),
    ("out of range", Reason.OUT_OF_RANGE, tensors(weight([3, 24], floats(1, 1)))),
    ("far out of range", Reason.OUT_OF_RANGE, tensors(weight([3, 2**32 - 1], floats(1, 1)))),
    ("unsorted", Reason.UNSORTED, tensors(weight([5, 3], floats(1, 1)))),
    ("a duplicate", Reason.DUPLICATE, tensors(weight([3, 3], floats(1, 1)))),
    ("more indices than values", Reason.MALFORMED, tensors(weight([1, 2], floats(1)))),
    ("a map of bits too short", Reason.MALFORMED, tensors(weight([1], floats(1), encoding=BITS))),
    ("an unknown encoding", Reason.MALFORMED, tensors(weight([1], floats(1), encoding=9))),
    ("values of three bytes", Reason.MALFORMED, tensors(weight([1], b"123", width=3))),
    ("half a value", Reason.MALFORMED, tensors(weight([1], b"123"))),
    ("a tensor of no form", Reason.MALFORMED, tensors({"weight": 7})),
    ("too long", Reason.NORM_TOO_LARGE, tensors(weight([1], floats(1000.0)))),
    ("a snapshot unasked", Reason.MALFORMED, lambda f: f.forge("node-0", kind="snapshot")),
    ("a step size of nothing", Reason.MALFORMED, lambda f: f.forge("node-0", step=0.0)),
]


@pytest.mark.parametrize(("reason", "forge"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_delta_is_refused_and_counted_and_changes_nothing(
    reason: Reason, forge: Forge
) -> None:
    made = fleet()
    receiver = made.nodes["node-1"]
    payload = forge(made)
    before = fingerprint(receiver)
    made.do("node-1", receiver.on_message("node-0", payload, made.now))
    assert fingerprint(receiver) == before
    assert receiver.refusals.total == {reason: 1}
    assert receiver.refusals.by_sender() == {"node-0": {str(reason): 1}}
    assert made.fetches == []
    named = [event.node for to, event in made.events if to == "node-1" and event.kind == "refused"]
    assert named == ([] if reason in HARMLESS else ["node-0"])


def test_the_next_good_delta_is_taken_after_each_bad_one() -> None:
    made = fleet()
    receiver = made.nodes["node-1"]
    for _, _, forge in BAD:
        receiver.on_message("node-0", forge(made), made.now)
    made.step("node-0", np.full(LAYOUT.size, 0.01, np.float32))
    made.settle()
    copy = receiver.copy_of("node-0")
    assert copy is not None
    assert copy[:2] == made.nodes["node-0"].position


def test_a_claim_of_a_gigabyte_allocates_nothing() -> None:
    made = fleet()
    receiver = made.nodes["node-1"]
    claims = [forge(made) for name, _, forge in BAD if "gigabyte" in name]
    assert len(claims) == 3
    tracemalloc.start()
    try:
        for claim in claims:
            receiver.on_message("node-0", claim, made.now)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_neighbour_that_is_behind_finds_no_later_object_in_place_of_the_signed_one() -> None:
    large = Layout({"weight": (300, 1000)})
    options = LearningOptions(share=1.0, bytes_per_delta=1 << 24, half=False, messages_per_s=1e3)
    made = Fleet(2, options, large)
    made.settle()
    for number in range(MOST_WAITING + 2):  # one is fetched, and one is stored
        made.step("node-0", np.full(large.size, number + 1.0, np.float32))
    taken = made.nodes["node-1"].accepted
    made.settle()
    assert made.nodes["node-1"].refusals.total[Reason.FORGED] == 0
    assert made.nodes["node-1"].accepted - taken > 1


def test_an_object_other_than_the_signed_one_is_refused() -> None:
    large = Layout({"weight": (300, 1000)})
    made = Fleet(2, LearningOptions(share=1.0, bytes_per_delta=1 << 24, half=False), large)
    made.settle()
    before = fingerprint(made.nodes["node-1"])
    made.nodes["node-0"].refusals.total.clear()
    for effect in made.nodes["node-0"].step(np.ones(large.size, np.float32), made.now):
        payload = effect.payload  # type: ignore[union-attr]
    made.objects.clear()
    made.do("node-1", made.nodes["node-1"].on_message("node-0", payload, made.now))
    fetch = made.fetches[-1][1]
    made.nodes["node-1"].on_stored(fetch, b"\0" * fetch.size, made.now)
    assert fingerprint(made.nodes["node-1"]) == before
    assert made.nodes["node-1"].refusals.total == {Reason.UNAVAILABLE: 1, Reason.FORGED: 1}


def test_a_key_that_is_not_on_the_list_teaches_nobody() -> None:
    known = Identity((0).to_bytes(32))
    made = Fleet(3, EAGER, allowed=AllowList({known.public: "camera 1"}))
    made.settle()
    assert made.nodes["node-1"].neighbours == {"node-0"}
    assert made.nodes["node-0"].neighbours == set()
    before = fingerprint(made.nodes["node-1"])
    payload = made.forge("node-2", tensors=weight([1], floats(1)))
    # Under its own name, and under the name of a node that is allowed.
    for name in ("node-2", "node-0"):
        made.nodes["node-1"].on_message(name, payload, made.now)
    assert fingerprint(made.nodes["node-1"]) == before
    by_sender = made.nodes["node-1"].refusals.by_sender()
    assert by_sender["node-2"] == {"not_a_neighbour": 1}
    assert by_sender["node-0"] == {"not_allowed": 1}


def test_a_flood_is_refused_before_it_is_read() -> None:
    made = fleet(LearningOptions(messages_per_s=20, graph="complete"))
    receiver = made.nodes["node-1"]
    made.now += 100.0
    receiver.refusals.total.clear()
    before = fingerprint(receiver)
    good = made.forge("node-0", sequence=10_000)
    for _ in range(1000):
        made.do("node-1", receiver.on_message("node-0", good, made.now))
    assert fingerprint(receiver) == before
    assert receiver.refusals.total == {Reason.GAP: 40, Reason.TOO_FAST: 960}
    told = [e for _, e in made.events if e.kind == "refused" and "too_fast" in e.detail]
    assert len(told) == 1  # not a thousand events
    made.now += TELL_EVERY
    made.do("node-1", receiver.on_message("node-0", good, made.now))
    assert receiver.refusals.total[Reason.TOO_FAST] == 960


def test_questions_for_snapshots_are_answered_within_their_budget_and_to_participants_alone() -> (
    None
):
    made = fleet(LearningOptions(snapshots_per_s=1, messages_per_s=1000, graph="complete"))
    asked = made.nodes["node-1"]
    made.now += 100.0
    question = made.forge("node-0", kind="ask", nonce=bytes(16), tensors=None)
    answers = [asked.on_request(question, made.now) for _ in range(10)]
    assert sum(answer is not None for answer in answers) == 2
    assert asked.refusals.total[Reason.TOO_FAST] == 8
    made.now += 100.0
    stranger = made.forge("node-0", kind="ask", nonce=bytes(16), tensors=None, identity=STRANGER)
    assert asked.on_request(stranger, made.now) is None
    assert asked.on_request(b"noise", made.now) is None


def test_a_snapshot_that_answers_no_question_is_refused() -> None:
    made = fleet()
    receiver = made.nodes["node-1"]
    before = fingerprint(receiver)
    vector = whole(LAYOUT, np.ones(LAYOUT.size, np.float32))
    forged = made.forge("node-0", kind="snapshot", nonce=bytes(16), tensors=vector)
    receiver.on_snapshot("node-0", forged, made.now)
    assert fingerprint(receiver) == before
    assert receiver.refusals.total == {Reason.REPLAYED: 1}


def test_nothing_more_is_taken_of_a_node_that_is_blocked_whatever_it_calls_itself() -> None:
    made = fleet()
    receiver = made.nodes["node-1"]
    assert receiver.block("node-0")
    assert not receiver.block("node-0")
    before = fingerprint(receiver)
    made.step("node-0", np.ones(LAYOUT.size, np.float32))
    made.settle()
    key = made.identities["node-0"].public
    made.do("node-1", receiver.set_peers({"node-9": key}, made.now))
    receiver.on_message("node-9", made.forge("node-0", node="node-9"), made.now)
    assert fingerprint(receiver) == before
    assert receiver.refusals.total == {Reason.BLOCKED: 2}
    assert made.wire == []  # it is asked for no snapshot


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_bytes_from_the_network_never_raise(data: bytes) -> None:
    before = fingerprint(READY.nodes["node-1"])
    READY.nodes["node-1"].on_message("node-0", data, 0.0)
    READY.nodes["node-1"].on_snapshot("node-0", data, 0.0)
    READY.nodes["node-1"].on_request(data, 0.0)
    assert fingerprint(READY.nodes["node-1"]) == before


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(st.sampled_from(["weight", "bias"]), plain_values, min_size=1))
def test_signed_nonsense_in_place_of_tensors_never_raises(nonsense: dict[str, Any]) -> None:
    before = fingerprint(READY.nodes["node-1"])
    payload = READY.forge("node-0", tensors=nonsense)
    READY.nodes["node-1"].on_message("node-0", payload, 0.0)
    assert fingerprint(READY.nodes["node-1"]) == before


@settings(deadline=None)
@given(st.data(), st.booleans())
def test_a_delta_reads_as_it_was_written(data: st.DataObject, half: bool) -> None:
    vector = np.zeros(LAYOUT.size, np.float32)
    count = data.draw(st.integers(0, LAYOUT.size))
    chosen = data.draw(st.permutations(range(LAYOUT.size)))[:count]
    vector[chosen] = np.arange(1, count + 1, dtype=np.float32)
    delta = top_k(vector, LAYOUT.size, half=half)
    packed = tensors_of(LAYOUT, delta, half=half)
    read = read_tensors(packed, LAYOUT)
    assert np.array_equal(read.indices, delta.indices)
    assert np.array_equal(read.values, delta.values)
    assert len(pack(packed)) < 4 * LAYOUT.size + 100


READY = fleet()
