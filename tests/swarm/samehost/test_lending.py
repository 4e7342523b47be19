"""Large tensors between the shared memory of two processes: two `Lender`s on one server."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_server import Links, hang, resume
from support.waiting import GENEROUS, eventually

import swarm.samehost.lending
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import DecodeError, NotConnected
from swarm.link import Link, LinkOptions
from swarm.samehost.lending import CONFIRM_AFTER, NO_LOAN, Lender, Loan
from swarm.samehost.memory import MIN_BYTES, Claim, Ring, ShmError, ShmStale, unavailable
from swarm.samehost.memory.claim import mesh_of
from swarm.samehost.memory.ring import CAPACITY
from swarm.wire.maps import unpack_map
from swarm.wire.tensors import Claimed, decode_tensors

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

SHM = Path("/dev/shm")
LARGE = 128 << 10  # bytes
BIG = LARGE // 4  # FP32 elements


def segments(mesh: str) -> list[str]:
    return [path.name for path in SHM.iterdir() if mesh_of(path.name) == mesh]


class Pair:
    """A lender and a borrower, each with its own link."""

    def __init__(self, mesh: str, lender: Lender, borrower: Lender, links: list[Link]) -> None:
        self.mesh = mesh
        self.lender = lender
        self.borrower = borrower
        self.links = links

    def lend(self, **arrays: np.ndarray) -> dict[str, Any]:
        """The tensors as the borrower decodes them from a message."""
        lent = self.lender.lend(arrays)
        assert lent.packed is not None
        return decode_tensors(unpack_map(lent.packed, 64 << 20))

    @property
    def outstanding(self) -> int:
        return self.lender.stats.outstanding

    def files(self) -> list[str]:
        return segments(self.mesh)

    async def settle(self) -> None:
        for link in self.links:
            await link.flush()
        for link in self.links:
            await link.flush()


@pytest.fixture
async def pair(server: EmbeddedServer, links: Links) -> AsyncIterator[Pair]:
    mesh = f"test-{secrets.token_hex(6)}"
    # No pings but those of claims, which are counted.
    one, two = [await links.connect(server.url, ping_interval=60.0) for _ in range(2)]
    made = Pair(mesh, Lender(one, mesh), Lender(two, mesh), [one, two])
    await made.settle()
    yield made
    await made.borrower.close(0.0)
    await made.lender.close(0.0)
    for name in made.files():
        (SHM / name).unlink(missing_ok=True)


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "big": rng.standard_normal((4, BIG)).astype(np.float32),
        "small": np.arange(5, dtype=np.int64),
        "half": rng.standard_normal((MIN_BYTES,)).astype(np.float16),
        "flag": np.array(True),
    }


async def test_large_tensors_go_by_claim_and_arrive_byte_for_byte(pair: Pair) -> None:
    sent = arrays()
    got = pair.lend(**sent)
    assert {name for name, value in got.items() if isinstance(value, Claimed)} == {"big", "half"}
    opened = pair.borrower.open(got)
    for name, value in sent.items():
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(got[name], value)
    assert pair.borrower.intact(opened)
    assert not got["big"].flags.owndata  # a view: nothing was copied
    assert not got["big"].flags.writeable


async def test_small_tensors_stay_in_the_message(pair: Pair) -> None:
    assert pair.lender.lend({"x": np.zeros(MIN_BYTES - 1, np.uint8)}) is NO_LOAN
    assert pair.lender.lend({}) is NO_LOAN
    assert pair.files() == []  # no memory was even asked for
    assert pair.lender.lend({"x": np.zeros(MIN_BYTES, np.uint8)}).packed is not None


async def test_a_lender_that_is_switched_off_lends_nothing_and_nobody_lends_to_it(
    links: Links, server: EmbeddedServer
) -> None:
    mesh = f"test-{secrets.token_hex(6)}"
    claims = Lender(await links.connect(server.url), mesh, enabled=False)
    assert claims.host == ""  # others compare it with theirs before they lend
    assert not claims.wants(arrays())
    assert claims.lend(arrays()) is NO_LOAN
    claims.tend()
    await claims.close(0.0)
    assert segments(mesh) == []


async def test_tensors_that_were_used_are_given_back(pair: Pair) -> None:
    got = pair.lend(**arrays())
    assert pair.outstanding == 2
    pair.borrower.done(pair.borrower.open(got))
    await eventually(lambda: pair.outstanding == 0, what="the release")


async def timers_have_run() -> None:
    """The timer that tells of what was used, if it is set, is due before this one."""
    await asyncio.sleep(CONFIRM_AFTER + 0.002)  # there is no event: nothing is told


async def test_memory_is_kept_until_the_server_has_read_what_was_sent(
    pair: Pair, own_server: EmbeddedServer, syncs: list[None]
) -> None:
    """The ack among it: were it lost, the message would be handed out again and need the memory.
    And a result that is a view of it may still wait in the socket."""
    opened = pair.borrower.open(pair.lend(**arrays()))
    await hang(own_server)
    try:
        pair.borrower.done(opened)
        await eventually(lambda: len(syncs) == 1, "the question whether the server has read all")
        assert pair.outstanding == 2
    finally:
        resume(own_server)
    await eventually(lambda: pair.outstanding == 0, what="the release")


@pytest.fixture
def syncs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each time that the borrower asks whether the server has read everything."""
    link, asked = pair.links[1], []
    sync = link.sync

    def counted() -> asyncio.Future[None]:
        asked.append(None)
        return sync()

    monkeypatch.setattr(link, "sync", counted)
    return asked


async def test_tensors_that_were_used_are_told_together_after_a_while(
    pair: Pair, syncs: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        swarm.samehost.lending, "CONFIRM_AFTER", 1.0
    )  # a slow machine tells no sooner
    for _ in range(5):
        pair.borrower.done(pair.borrower.open(pair.lend(**arrays())))
    assert len(syncs) == 0
    await eventually(lambda: pair.outstanding == 0, what="the release")
    assert len(syncs) == 1


async def test_tensors_that_were_used_are_told_at_once_when_they_are_large(
    pair: Pair, syncs: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm.samehost.lending, "CONFIRM_AFTER", 60.0)
    two = 2 * sum(array.nbytes for array in arrays().values() if array.nbytes >= MIN_BYTES)
    monkeypatch.setattr(swarm.samehost.lending, "CONFIRM_BYTES", two)
    for number in range(4):
        pair.borrower.done(pair.borrower.open(pair.lend(**arrays())))
        assert len(syncs) == (number + 1) // 2
    await eventually(lambda: pair.outstanding == 0, what="the release")


async def test_memory_is_kept_when_the_connection_is_lost_before(pair: Pair, links: Links) -> None:
    pair.borrower.done(pair.borrower.open(pair.lend(**arrays())))
    await links.crash(pair.links[1])
    await timers_have_run()
    assert pair.outstanding == 2


async def test_memory_is_kept_until_the_server_has_read_both_connections(
    pair: Pair, links: Links, server: EmbeddedServer
) -> None:
    second = await links.connect(server.url, ping_interval=60.0)
    pair.borrower.follow(second)
    pair.borrower.done(pair.borrower.open(pair.lend(**arrays())))
    await eventually(lambda: pair.outstanding == 0, what="the release")
    pair.borrower.done(pair.borrower.open(pair.lend(**arrays())))
    await links.crash(second)  # the acknowledgements may have been on their way over it
    await timers_have_run()
    assert pair.outstanding == 2


async def test_tensors_used_at_the_end_are_told_once_and_nothing_is_opened_again(
    pair: Pair,
) -> None:
    got = pair.lend(**arrays())
    pair.borrower.done(pair.borrower.open(got))
    got.clear()
    await pair.borrower.close(0.0)
    assert pair.outstanding == 0
    files = len(os.listdir("/proc/self/fd"))
    await timers_have_run()
    assert len(os.listdir("/proc/self/fd")) == files


async def test_claims_that_were_never_opened_are_given_back(pair: Pair) -> None:
    got = pair.lend(**arrays())
    value = got["big"]
    data = {"claim": "no claim at all", "owner": "_INBOX.x"}
    malformed = value._replace(claim=data)
    pair.borrower.give_back({"malformed": malformed, **got})
    await eventually(lambda: pair.outstanding == 0, what="the release")


async def test_taking_copies_and_gives_back_at_once(pair: Pair) -> None:
    sent = arrays()
    got = pair.lend(**sent)
    pair.borrower.take(got)
    await eventually(lambda: pair.outstanding == 0, what="the release")
    pair.lend(**arrays(1))  # the memory is used again
    np.testing.assert_array_equal(got["big"], sent["big"])
    assert got["big"].flags.owndata


async def test_a_loan_that_was_never_sent_is_taken_back(pair: Pair) -> None:
    lent = pair.lender.lend(arrays())
    assert lent.packed is not None
    lent.take_back()
    assert pair.outstanding == 0


async def test_recycled_memory_is_noticed(pair: Pair) -> None:
    lent = pair.lender.lend(arrays())
    assert lent.packed is not None
    again = decode_tensors(unpack_map(lent.packed, 64 << 20))
    got = decode_tensors(unpack_map(lent.packed, 64 << 20))
    opened = pair.borrower.open(got)
    assert pair.borrower.intact(opened)
    lent.take_back()
    for seed in range(1, 4):
        pair.lend(**arrays(seed))
    assert not pair.borrower.intact(opened)
    with pytest.raises(ShmStale):
        pair.borrower.open(again)


async def test_a_claim_that_fails_leaves_none_of_the_others_in_use(pair: Pair) -> None:
    """What is opened must be watched while it is used; after a failure nobody watches."""
    lent = pair.lender.lend(arrays())
    assert lent.packed is not None
    got = decode_tensors(unpack_map(lent.packed, 64 << 20))
    pair.borrower.give_back({"half": got["half"]})  # the second of two
    await eventually(lambda: pair.outstanding == 1, what="the release")
    pair.lender.collect()
    with pytest.raises(ShmStale):
        pair.borrower.open(got)
    assert all(isinstance(got[name], Claimed) for name in ("big", "half"))


async def test_a_survivor_reads_what_the_dead_lent_while_the_memory_is_there(
    pair: Pair, links: Links
) -> None:
    sent = arrays()
    got = pair.lend(**sent)
    await links.crash(pair.links[0])
    opened = pair.borrower.open(got)
    np.testing.assert_array_equal(got["big"], sent["big"])
    pair.borrower.done(opened)  # to nobody: harmless


async def test_nothing_is_left_in_shared_memory_after_the_end(pair: Pair) -> None:
    got = pair.lend(**arrays())
    assert len(pair.files()) == 1
    opened = pair.borrower.open(got)
    pair.borrower.done(opened)
    await pair.settle()
    await pair.lender.close()
    await pair.borrower.close()
    assert pair.files() == []
    np.testing.assert_array_equal(got["big"], arrays()["big"])  # a view in use stays valid
    assert pair.lender.lend(arrays()) is NO_LOAN


async def test_the_end_waits_for_a_borrower(pair: Pair) -> None:
    opened = pair.borrower.open(pair.lend(**arrays()))
    ending = asyncio.create_task(pair.lender.close(linger=GENEROUS))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    pair.borrower.done(opened)
    await asyncio.wait_for(ending, GENEROUS)
    assert pair.files() == []


async def test_when_memory_is_full_the_bytes_are_sent(pair: Pair) -> None:
    large = np.zeros(CAPACITY // 8, np.uint8)
    loans = [pair.lender.lend({"x": large}) for _ in range(8)]
    assert loans[0].packed is not None
    assert loans[-1] is NO_LOAN
    # Two of which one has no room: neither is lent.
    before = pair.outstanding
    loans[0].take_back()
    assert pair.lender.lend({"a": large[:LARGE], "b": np.zeros(CAPACITY, np.uint8)}) is NO_LOAN
    assert pair.outstanding == before - 1


# --- malformed claims -------------------------------------------------------------------


def wrapping_shape(length: int) -> tuple[int, ...]:
    """Dimensions within the limits whose product is `length` modulo 2**64, and not `length`."""
    for extra in range(1, 2000):
        rest, found = (extra << 64) + length, []
        for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47):
            while rest % prime == 0:
                rest //= prime
                found.append(prime)
        if rest < 1 << 31:
            dims = [rest]
            for factor in found:
                if dims[-1] * factor < 1 << 31:
                    dims[-1] *= factor
                else:
                    dims.append(factor)
            return tuple(dims)
    raise AssertionError("none found")


async def test_a_shape_whose_size_overflows_is_refused(pair: Pair) -> None:
    length = LARGE * 3
    shape = wrapping_shape(length)
    assert math.prod(shape) != length
    assert math.prod(shape) % (1 << 64) == length
    got = pair.lend(x=np.zeros(length, np.uint8))
    doc = {"datatype": "UINT8", "shape": list(shape), "codec": "shm", "data": got["x"].claim}
    got = decode_tensors({"x": doc})
    with pytest.raises(DecodeError):
        pair.borrower.open(dict(got))
    with pytest.raises(DecodeError):
        pair.borrower.take(dict(got))


def unconnected() -> Lender:
    return Lender(Link(LinkOptions()), "test-nobody")


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
GOOD = Claim("0" * 16, "swarm-test-nobody-1-" + "0" * 16, 64, MIN_BYTES, 2, 1, 0).to_wire()


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.integers(0, len(GOOD) - 1), st.integers(0, 255), max_size=3),
    st.one_of(JUNK, st.just("_INBOX.x"), st.just("swarm.default.features.m.1.1.any")),
    JUNK,
    st.integers(0, 3),
    st.lists(st.integers(0, 2**31), max_size=16),
)
def test_a_malformed_claim_is_an_error_of_ours_and_never_another(
    changes: dict[int, int], owner: Any, junk: Any, how: int, shape: list[int]
) -> None:
    claims = unconnected()
    wire = bytearray(GOOD)
    for at, byte in changes.items():
        wire[at] = byte
    data: Any = {"claim": bytes(wire), "owner": owner}
    if how == 0:
        data = junk
    elif how == 1:
        data = {"claim": junk, "owner": "_INBOX.x"}
    shape = shape if how != 3 else [MIN_BYTES]
    value = Claimed(np.dtype("u1"), tuple(shape), math.prod(shape), data)
    for attempt in (claims.open, claims.take):
        with pytest.raises((DecodeError, ShmError)):
            attempt({"x": value})


async def test_a_loan_is_alive_until_it_is_given_back_used_up_or_recycled(pair: Pair) -> None:
    """A message that is stored late carries claims that somebody may have been done with."""
    lent = pair.lender.lend(arrays())
    assert lent.packed is not None
    assert lent.alive
    lent.take_back()
    assert not lent.alive
    pair.lend(**arrays(1))
    assert not lent.alive, "the memory is somebody else's by now"
    other = pair.lender.lend(arrays())
    assert other.packed is not None
    pair.borrower.take(decode_tensors(unpack_map(other.packed, 64 << 20)))
    assert not other.alive
    assert NO_LOAN.alive


# --- a loan by itself -------------------------------------------------------------------


async def test_arrays_that_were_copied_are_let_go_and_small_ones_travel(pair: Pair) -> None:
    large, small = np.ones((2, MIN_BYTES), np.int8), np.ones(3)
    copied = weakref.ref(large)
    loan = pair.lender.lend({"large": large, "small": small})
    del large
    assert copied() is None
    said = loan.tensors["large"]
    assert (said.dtype, said.shape, said.nbytes) == (np.int8, (2, MIN_BYTES), 2 * MIN_BYTES)
    assert loan.tensors["small"] is small
    assert loan.packed is not None
    back = decode_tensors(unpack_map(loan.packed, 1 << 20))
    assert Claim.from_wire(back["large"].claim["claim"]) == loan.claims["large"]
    assert pair.borrower.open(back) == [loan.claims["large"]]
    assert (back["large"] == 1).all()
    assert (back["small"] == small).all()


def test_lent_tensors_are_taken_back_by_an_error_only_and_any_number_of_times() -> None:
    ring = Ring(f"test-{secrets.token_hex(6)}")
    first, second = ring.put([b"x"]), ring.put([b"y"])
    assert first is not None
    assert second is not None
    loan = Loan({}, ring, {"x": first})
    with loan:
        pass
    assert ring.stats.outstanding == 2
    with pytest.raises(NotConnected), loan:
        raise NotConnected("gone")
    assert ring.stats.outstanding == 1
    loan.take_back()
    third = ring.put([b"z"])  # in the same place as the first
    assert third is not None
    loan.take_back()
    assert ring.stats.outstanding == 2
    ring.close()


def test_without_claims_there_is_nothing_to_take_back() -> None:
    assert NO_LOAN.packed is None
    NO_LOAN.take_back()
    with pytest.raises(NotConnected), NO_LOAN:
        raise NotConnected("gone")


async def test_lent_tensors_are_little_endian_whatever_they_were(pair: Pair) -> None:
    values = np.arange(MIN_BYTES).astype(">f4")
    got = pair.lend(x=values)
    pair.borrower.open(got)
    np.testing.assert_array_equal(got["x"], values)


async def test_a_loan_that_somebody_may_be_reading_is_not_taken_back(pair: Pair) -> None:
    loan = pair.lender.lend(arrays())
    loan.keep()
    loan.take_back()
    with pytest.raises(NotConnected), loan:
        raise NotConnected("lost")
    assert pair.outstanding == 2
    loan.unread()
    loan.take_back()
    assert pair.outstanding == 0
