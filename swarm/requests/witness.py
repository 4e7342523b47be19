"""Copies of the requests of others, kept by a witness until somebody has answered them. Pure.

NATS gives a request to `infer.<model>` to one member of a queue group, as the server chooses. A
process that hangs keeps its connection: it stays a member, and what it is given gets neither an
answer nor an error, until the server's pings fail. So two of the nodes that answer, the witnesses,
get a copy of each request. A node that answers tells them by notices which requests it has in hand,
and which it has answered. A witness itself answers a request that no node has in hand in time, and
one whose node has been silent since. It may be wrong about a node that is only slow: then a request
is answered twice, and its client takes the first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from swarm.errors import DecodeError
from swarm.fleet.advertised import EVERY_MODEL, Answerer
from swarm.routing.rendezvous import rendezvous
from swarm.wire.maps import pack, unpack_map

T = TypeVar("T")

# Seconds after which a request that nobody has begun is taken: by the first witness, and by the
# second, who hears whether the first one has begun it. Notices take a tenth of a second, and a
# machine that is busy stalls a node for as long.
PATIENCE, SECOND_PATIENCE = 0.35, 0.7
SILENT_FOR = 1.0  # seconds without a notice of a node that has begun a request, and not ended it
NOTICE_EVERY = 0.05  # seconds between two notices of a node that answers
SIGN_EVERY = 0.2  # seconds between two signs of life of a node that has requests in hand
MOST_BYTES = 32 << 20  # of copies; the oldest go first
MOST_COPIES = 16384
EARLY_FOR = 2.0  # seconds; in a cluster a notice may be faster than the copy it is about
LONGEST_NOTICE = 1 << 20  # bytes
KEY_BYTES = 8
_ENDS = 256  # bytes at each end of a request, by which it is known


def key_of(reply: str, data: bytes | memoryview) -> bytes:
    """What a request is called in notices: the same for each of its copies.

    reply: the subject of its answer. A client may use one for all its requests, so parts of the
    request count too; not all of it, which would take long where it is large.
    """
    known = blake2b(reply.encode(), digest_size=KEY_BYTES)
    size = len(data)
    known.update(size.to_bytes(8, "big"))
    if size <= 2 * _ENDS:
        known.update(data)
    else:
        known.update(data[:_ENDS])
        known.update(data[-_ENDS:])
    return known.digest()


@dataclass(frozen=True, slots=True)
class Notice:
    """What a node tells its witnesses: the keys of all requests that it has in hand, and of those
    that it has answered since its last notice."""

    node: str
    in_hand: tuple[bytes, ...] = ()
    ended: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        keys = {"in_hand": b"".join(self.in_hand), "ended": b"".join(self.ended)}
        return pack({"v": 1, "node": self.node} | {k: v for k, v in keys.items() if v})

    @staticmethod
    def decode(data: bytes | memoryview) -> Notice:
        """Raises `DecodeError`."""
        doc = unpack_map(data, LONGEST_NOTICE)
        node = doc.get("node")
        if doc.get("v") != 1 or not isinstance(node, str):
            raise DecodeError("a notice has v: 1 and a node")
        return Notice(node, _keys(doc.get("in_hand", b"")), _keys(doc.get("ended", b"")))


def _keys(joined: object) -> tuple[bytes, ...]:
    if not isinstance(joined, bytes | memoryview) or len(joined) % KEY_BYTES:
        raise DecodeError(f"the keys of a notice have {KEY_BYTES} bytes each")
    whole = bytes(joined)
    return tuple([whole[at : at + KEY_BYTES] for at in range(0, len(whole), KEY_BYTES)])


class RequestsInHand:
    """The requests that a node has in hand, as it tells its witnesses.

    `began` is called for each request, then `ended`, or `dropped` where it was not answered.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._open: dict[bytes, int] = {}  # several at a time where a client asks again
        self._ended: list[bytes] = []
        self._is_new = False  # whether something has begun since the last notice

    def began(self, key: bytes) -> None:
        self._open[key] = self._open.get(key, 0) + 1
        self._is_new = True

    def ended(self, key: bytes) -> None:
        self.dropped(key)
        if key not in self._open and len(self._ended) < MOST_COPIES:
            self._ended.append(key)

    def dropped(self, key: bytes) -> None:
        left = self._open.pop(key, 1) - 1
        if left > 0:
            self._open[key] = left

    @property
    def due(self) -> float | None:
        """Seconds until the next notice; None while there is nothing to tell."""
        if self._ended or self._is_new:
            return NOTICE_EVERY
        return SIGN_EVERY if self._open else None

    @property
    def notice(self) -> Notice:
        """What is to be told now."""
        return Notice(self._node, tuple(self._open), tuple(self._ended))

    def told(self) -> None:
        """The notice of this moment was sent."""
        self._ended.clear()
        self._is_new = False


@dataclass(slots=True)
class _Copy(Generic[T]):
    request: T
    size: int
    heard: float
    node: str = ""  # that has it in hand


@dataclass(frozen=True, slots=True)
class TakenOver(Generic[T]):
    """A request to be answered in another's place. waited: seconds since its copy came. node: that
    had it in hand, "" where nobody had."""

    request: T
    waited: float
    node: str


class Witness(Generic[T]):
    """The copies of one witness. All times are seconds of one clock, the witness's own.

    dropped: copies for which there was no room. taken: requests that it has answered.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_copies: int = MOST_COPIES) -> None:
        self._most_bytes, self._most_copies = most_bytes, most_copies
        self._copies: dict[bytes, _Copy[T]] = {}  # by key, the oldest first
        self._bytes = 0
        self._hands: dict[str, tuple[frozenset[bytes], float]] = {}  # by node, and when it told
        # What notices told of requests whose copies are to come: who, "" for an end; and when.
        self._early: dict[bytes, tuple[str, float]] = {}
        self._tidied = 0.0
        self.dropped = 0
        self.taken = 0

    def __len__(self) -> int:
        return len(self._copies)

    def heard(self, key: bytes, request: T, size: int, now: float) -> None:
        """A copy came. size: its bytes."""
        early = self._early.pop(key, None)
        if early is not None and not early[0]:
            return
        self._forget(key)  # asked again: the new one counts
        self._copies[key] = _Copy(request, size, now, early[0] if early else "")
        self._bytes += size
        while self._bytes > self._most_bytes or len(self._copies) > self._most_copies:
            self._forget(next(iter(self._copies)))
            self.dropped += 1

    def told(self, notice: Notice, now: float) -> None:
        """A notice came."""
        self._hands[notice.node] = frozenset(notice.in_hand), now
        for key in notice.in_hand:
            copy = self._copies.get(key)
            if copy is None:
                self._early[key] = (notice.node, now)
            else:
                copy.node = notice.node
        for key in notice.ended:
            if not self._forget(key):
                self._early[key] = ("", now)

    def due(self, patience: float, gone: Callable[[str], bool], now: float) -> list[TakenOver[T]]:
        """The requests to be answered now; they are forgotten. To be asked when every notice that
        has come was told. gone(node): whether gossip has it that the node answers nobody."""
        lost = []
        for key, copy in self._copies.items():
            if copy.node:
                in_hand, told = self._hands[copy.node]
                is_lost = now - told > SILENT_FOR or key not in in_hand or gone(copy.node)
            else:
                is_lost = now - copy.heard > patience
            if is_lost:
                lost.append((key, TakenOver(copy.request, now - copy.heard, copy.node)))
        for key, _ in lost:
            self._forget(key)
        self.taken += len(lost)
        self._tidy(now)
        return [taken for _, taken in lost]

    def _forget(self, key: bytes) -> bool:
        copy = self._copies.pop(key, None)
        if copy is None:
            return False
        self._bytes -= copy.size
        return True

    def _tidy(self, now: float) -> None:
        if now - self._tidied < EARLY_FOR:
            return
        self._tidied = now
        for key in [key for key, (_, at) in self._early.items() if now - at > EARLY_FOR]:
            del self._early[key]
        begun = {copy.node for copy in self._copies.values()}
        begun |= {node for node, _ in self._early.values()}
        for node in self._hands.keys() - begun:
            del self._hands[node]


def witnesses(
    answerers: Iterable[Answerer], models: Iterable[str], some_died: bool
) -> Mapping[str, tuple[str, ...]]:
    """The witnesses of each model, two at most, the first one first. some_died: whether nodes are
    dead to gossip: one that hangs is, and its server goes on giving it requests.

    Nodes that serve the model come before those that answer for each one, the others by rendezvous.
    There is no witness where a node that may answer for the model sends no notices: each of its
    requests would be answered twice.
    """
    known = list(answerers)
    found: dict[str, tuple[str, ...]] = {}
    for model in models:
        answering = [each for each in known if each.model in (EVERY_MODEL, model)]
        if len(answering) + some_died < 2 or not all(each.tells for each in answering):
            continue
        able = {each.node: each.model for each in answering if each.may_witness}
        order = rendezvous(model, able)
        found[model] = tuple(sorted(order, key=lambda node: able[node] != model)[:2])
    return found
