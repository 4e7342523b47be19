"""Large tensors between processes of one host: a claim in the message, the bytes in shared memory.

Over the wire a tensor is copied into the server, out of it, and through two sockets (measured: 4 to
5 ms a hop for 1.6 MB); in shared memory it is copied once (0.04 ms). A message carries claims only
when every node that may receive it is on this host.

The life of a copy:

    lend        the sender copies the tensors, and the message carries claims
    open        a receiver views them, computes, and asks whether they stayed `intact` meanwhile
    done        the message is settled, and the receiver says so by a word in the memory itself
    collect     the sender uses the memory again

The copy stays until the receiver is done, so a redelivery finds it again, also after the sender's
death. A copy that was recycled is noticed (sequence, checksum). A receiver that cannot read a claim
answers UNAVAILABLE, and the requester asks again over the wire. A copy that no receiver releases
(its message was lost, or its receiver died) is freed by age:
`swarm.samehost.memory.ring`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from swarm.errors import DecodeError, NotConnected, SwarmError
from swarm.link import Link
from swarm.samehost.memory import (
    MIN_BYTES,
    Claim,
    ClaimReader,
    Ring,
    RingStats,
    ShmError,
    ShmStale,
    host_id,
    sweep,
    unavailable,
)
from swarm.wire.tensors import Claimed, Part, claim_prefix, encode_tensors, map_prefix, plain

log = logging.getLogger("swarm.claims")

SWEEP_EVERY = 5.0  # seconds; each opens the segments of all of a host's processes
# Claims that this process is done with are gathered for so long, or until they are so large: one
# PING, and its answer's turn of the loop, serves all of them.
CONFIRM_AFTER, CONFIRM_BYTES = 0.25, 8 << 20  # seconds, bytes

Opened = list[Claim]  # in use


class Loan:
    """Tensors lent for one message, whatever ways it is tried; a context around an attempt to
    publish it, which takes them back when that raises. Without claims (`NO_LOAN`) it does nothing.

    claims: by name of tensor; the bytes of the other tensors travel in the message. tensors: as the
    message says them, with a `Claimed` in place of each that was copied, so that its array can be
    let go. owner: an inbox, which nodes of the version before expect beside a claim; nobody answers
    there.
    """

    __slots__ = ("_kept", "_packed", "_ring", "claims", "owner", "tensors")

    def __init__(
        self,
        tensors: dict[str, Any] | None = None,
        ring: Ring | None = None,
        claims: Mapping[str, Claim] | None = None,
        owner: str = "",
    ) -> None:
        self.tensors = tensors or {}
        self.claims = {} if claims is None else claims
        self.owner = owner
        self._ring = ring
        self._packed: bytes | None = None
        self._kept = False

    @property
    def packed(self) -> bytes | None:
        """The tensors as a MessagePack map with claims. None without claims: the message carries
        the bytes of all."""
        if self._packed is None and self.claims:
            parts: list[Part] = [map_prefix(len(self.tensors))]
            for name, array in self.tensors.items():
                claim = self.claims.get(name)
                if claim is None:
                    parts += encode_tensors({name: array})[1:]
                    continue
                document = {"claim": claim.to_wire(), "owner": self.owner}
                prefix = claim_prefix(name, array.dtype, array.shape)
                parts += (prefix, msgpack.packb(document))
            self._packed = b"".join(parts)
        return self._packed

    @property
    def alive(self) -> bool:
        """Whether a message that carries the claims can still be read: no receiver is done with one
        of them, and none was taken back, or freed by age."""
        ring = self._ring
        return ring is None or all(map(ring.holds, self.claims.values()))

    def take_back(self) -> None:
        """Free the memory, unless the loan is kept: the message reached nobody. May be called any
        number of times."""
        if self._ring is not None and not self._kept:
            for claim in self.claims.values():
                self._ring.release(claim)

    def keep(self) -> None:
        """Somebody may be reading the tensors, whatever becomes of the message: `take_back` does
        nothing until `unread`."""
        self._kept = True

    def unread(self) -> None:
        """Nobody reads the tensors, or will: `take_back` frees them again."""
        self._kept = False

    def __enter__(self) -> Loan:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.take_back()


NO_LOAN = Loan()


class Lender:
    """One process's shared memory: the tensors that it lends, and those that it has borrowed.

    host: names the host and the kind of memory; processes with equal names can read each other's
    claims. Empty where shared memory is not available, or not enabled: nothing is lent then, and
    nobody lends to this process. lent: how many tensors were lent.
    """

    def __init__(self, link: Link, mesh: str, enabled: bool = True) -> None:
        self.host = _host() if enabled else ""
        self.lent = 0
        self._link = link
        self._second: Link | None = None
        self._mesh = mesh
        self._ring = Ring(mesh)
        self._reader = ClaimReader(mesh)
        self._owner = f"{link.options.inbox}.claims.x"
        self._finished: Opened = []
        self._finished_bytes = 0
        self._confirming: asyncio.TimerHandle | None = None
        self._swept = 0.0  # time.monotonic()
        link.on_down.append(self._forget_finished)

    def follow(self, second: Link) -> None:
        """Messages go over a second connection too: the server has read everything when it has
        read both."""
        self._second = second
        second.on_down.append(self._forget_finished)

    @property
    def stats(self) -> RingStats:
        """Counts of the memory that this process lends."""
        return self._ring.stats

    # --- lending ----------------------------------------------------------------------

    def wants(self, tensors: Mapping[str, np.ndarray]) -> bool:
        """Whether any tensor is large enough to be lent: the cheap question, to be asked first."""
        for array in tensors.values():
            if array.nbytes >= MIN_BYTES:
                return self.host != ""
        return False

    def lend(self, tensors: Mapping[str, np.ndarray]) -> Loan:
        """Copy the large tensors into shared memory, for one message.

        `NO_LOAN` when none is large enough, or there is no room just now. Raises
        `InvalidArgument` for a dtype that has no datatype on the wire; nothing is lent then.
        """
        if not self.wants(tensors):
            return NO_LOAN
        said: dict[str, Any] = {name: plain(array) for name, array in tensors.items()}
        claims: dict[str, Claim] = {}
        loan = Loan(said, self._ring, claims, self._owner)
        with loan:  # an error half-way leaves nothing lent
            for name, array in said.items():
                if array.nbytes < MIN_BYTES:
                    continue
                claim = self._ring.put([array.data])
                if claim is None:
                    loan.take_back()
                    return NO_LOAN
                claims[name] = claim
                said[name] = Claimed(array.dtype, array.shape, array.nbytes, claim)
        self.lent += len(claims)
        return loan

    def collect(self) -> None:
        """Free the tensors that receivers are done with. For the moment when a message was sent and
        nothing waits for this process."""
        if self.lent:
            self._ring.collect()

    # --- borrowing --------------------------------------------------------------------

    def open(self, tensors: dict[str, Any]) -> Opened:
        """Replace claims by arrays that view shared memory (no copy, read-only).

        Raises `ShmError` when a claim cannot be used here, `DecodeError` for a malformed one; no
        claim is replaced then.
        """
        opened: Opened = []
        views: dict[str, np.ndarray] = {}
        for name, value in tensors.items():
            if not isinstance(value, Claimed):
                continue
            claim = _parse(name, value)
            view = self._reader.open(claim)
            # Not `np.ndarray`, which lets go of the view: the memory could be unmapped in use.
            views[name] = np.frombuffer(view, value.dtype).reshape(value.shape)
            opened.append(claim)
        tensors.update(views)  # all or none: no caller would release a part of them
        return opened

    def take(self, tensors: dict[str, Any]) -> None:
        """Replace claims by arrays of their own: read, checked, and given back at once.

        Raises `ShmError`, `DecodeError`.
        """
        opened = self.open(tensors)
        if not opened:
            return
        for name, value in tensors.items():
            if isinstance(value, np.ndarray) and not value.flags.owndata:
                tensors[name] = value.copy()
        if not self.intact(opened):
            raise ShmStale("the memory was recycled while it was read")
        self._tell_owners(opened)

    def intact(self, opened: Opened) -> bool:
        """Whether the memory still holds the tensors that were lent: ask after the use, before the
        result is published."""
        return all(map(self._reader.check, opened))

    def done(self, opened: Opened) -> None:
        """The message that carried the claims is settled: tell the owners, when the server has read
        everything that this process sent.

        Not before: a lost ack hands the message out again, which needs the memory; and a result may
        be a view of the memory (a carried tensor) that still waits in the socket. When the
        connection is lost first, the memory is freed by age, or by the next receiver of the
        message.
        """
        if not opened:
            return
        self._finished += opened
        self._finished_bytes += sum(claim.length for claim in opened)
        if self._finished_bytes >= CONFIRM_BYTES:
            self._confirm()
        elif self._confirming is None:
            loop = asyncio.get_running_loop()
            self._confirming = loop.call_later(CONFIRM_AFTER, self._confirm)

    def give_back(self, tensors: Mapping[str, Any], but: Sequence[Claim] = ()) -> None:
        """`done` for claims that were never opened, except for those in `but`. A malformed claim is
        skipped: its owner is unknown."""
        for name, value in tensors.items():
            if isinstance(value, Claimed):
                with contextlib.suppress(DecodeError, ShmError):
                    claim = _parse(name, value)
                    self.done([] if claim in but else [claim])

    def _confirm(self) -> None:
        finished = self._take_finished()
        try:
            read = self._sync()
        except SwarmError:
            return  # freed by age

        def confirmed(read: asyncio.Future[Any]) -> None:
            if not read.cancelled() and read.exception() is None:
                self._tell_owners(finished)

        read.add_done_callback(confirmed)

    def _sync(self) -> asyncio.Future[Any]:
        """Completes when the server has read everything sent so far. Raises `NotConnected`."""
        if self._second is None:
            return self._link.sync()
        if not (self._link.connected and self._second.connected):
            raise NotConnected("one of the two connections is lost")
        return asyncio.gather(self._link.sync(), self._second.sync())

    def _take_finished(self) -> Opened:
        if self._confirming is not None:
            self._confirming.cancel()
            self._confirming = None
        finished, self._finished, self._finished_bytes = self._finished, [], 0
        return finished

    def _forget_finished(self) -> None:
        """The connection is lost, and perhaps the acks with it."""
        self._take_finished()

    def _tell_owners(self, opened: Opened) -> None:
        for claim in opened:
            self._reader.done(claim)

    # --- life -------------------------------------------------------------------------

    def tend(self) -> None:
        """Call about every second. Frees by age the tensors that nobody released; unmaps and
        removes the segments of dead processes."""
        self._ring.reclaim()
        self._reader.prune()
        if (now := time.monotonic()) - self._swept > SWEEP_EVERY:
            self._swept = now
            sweep(self._mesh)

    async def close(self, linger: float = 1.0) -> None:
        """Give receivers up to `linger` seconds, then free everything."""
        if finished := self._take_finished():
            with contextlib.suppress(SwarmError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._sync()
                self._tell_owners(finished)
        emptied = await self._ring.drain(linger)
        self._ring.close(abandon=not emptied)
        self._reader.close()


def _host() -> str:
    reason = unavailable()
    if reason is None:
        try:
            return host_id()
        except ShmError as error:
            reason = str(error)
    log.info("no shared memory: %s", reason)
    return ""


def _parse(name: str, value: Claimed) -> Claim:
    data = value.claim
    if type(data) is not dict:
        raise DecodeError(f"tensor {name!r}: a claim is a map of claim and owner")
    claim = Claim.from_wire(data.get("claim"))
    if claim.length != value.nbytes:
        raise DecodeError(f"tensor {name!r}: a claim on {claim.length} bytes, not {value.nbytes}")
    return claim
