"""The keys that a node gossips of itself, and the checks that a peer's values must pass.

role        "shard-2"                        draining  bool
device      "cpu", "cuda" …                  host      memory host id, or ""
priority    0 primary, 1 standby, 2 fallback memory    bytes free
            3 standby that has taken a stage, of its other stages
link_wait   milliseconds of `ack_wait` that its link needs (swarm.flow.transfers), absent if few
link_rate   bytes a second that its link brings, absent where it is fast or unknown
weight      its share of the requests beside its peers', absent if 1
codecs      codecs that it reads (swarm.wire.tensors.known_codecs), `pictures` if it decodes them
inbox       where processes of its host reach it without the server, or ""
identity    [public key, signature]          the key is this node's (swarm.security.attestation)
learns/T    [model, version, base (8 bytes), epoch, run, sequence]   what it learns, and how far
serves/T    [model, version, [stage, …]]     one model version and its stages, in order
takes/T     [model, version, [stage, …]]     of these stages the node is a primary, whatever its
            `priority`: a standby that has taken a stage
load/T/C    [[stage, waiting, in hand, compute ewma, p50, p99, queue ewma, p50, p99], …] of the
            stages from 16 C to 16 C + 15 that it serves, in order; times in microseconds
holds/T/S   [sessions, slots, follows, marks]  of stage S of a language model: its sessions, whether
            it follows those of others, and which beginnings of prompts it holds
            (swarm.language.marks), 96 bytes at most
answers     [model, witness]                 it answers requests for this model, "*" for each one,
            and sends notices; whether it may be a witness (swarm.requests.witness)
burns/T     [model, "latency"]               the objective that burns where this node answers
busy/T/C    [[stage, thousandths of the time in which it computes], …] of the same stages

Features add keys of their own (`swarm.feature.MeshFeature.gossip`).

T is a hash of model and version, whose names may be longer than a key. Gossip refuses a value above
1 KB whole, so no value grows with what a node serves: 253 stages of a version with the longest
names fit, whatever their numbers, and 16 loads take 707 bytes at most. All keys of a node together
have room for the loads of some 150 stages at the worst and 250 as a rule.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from swarm.feature import GossipEntry
from swarm.features import features
from swarm.fleet.priorities import PRIMARY
from swarm.routing import Candidate
from swarm.security.attestation import GOSSIP_KEY as IDENTITY
from swarm.security.attestation import attested_key, is_attestation
from swarm.subjects import TOKEN
from swarm.wire.hops import LONGEST_CODEC

if TYPE_CHECKING:
    from swarm.gossip import PeerView

ANSWERS = "answers"
EVERY_MODEL = "*"  # of who answers for each one
# Roles that answer requests. A node with one of them that does not advertise it runs an older
# version.
ANSWERING = {"shard-1", "fallback", "standby", "auto", "gateway", "edge", "join"}
Where = tuple[str, str, int]  # model, version, stage

MAX_STAGES = 256  # of one version: the longest list that gossip carries
MAX_CANDIDATES = 1024  # stages of one node that routing looks at, all versions together
MAX_STAGE = 4096
MAX_COUNT = 10**9
MAX_LINK_WAIT_MS = 30_000
MAX_CODECS = 16
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0
MAX_TIME = 3_600_000_000  # microseconds
BASE_BYTES = 8  # of the hash of what a learner begins from
LOAD_FIELDS = 8  # numbers of one stage's load, without the stage itself
STAGES_PER_LOAD_KEY = 16  # stages whose loads travel together
_IDLE_LOAD = (0,) * LOAD_FIELDS
_LARGEST_LOAD = (MAX_COUNT,) * 2 + (MAX_TIME,) * 6
MOST_MARKS = 128  # bytes
_HOLDS_NOTHING = (0, 0, False, b"")
_HOLDS_KEY = re.compile(r"[0-9a-f]{12}/(0|[1-9][0-9]{0,3})")
_LOADS = ("load/", "busy/", "holds/", "learns/", "burns/")
_LOAD_KEY = re.compile(r"[0-9a-f]{12}/(0|[1-9][0-9]{0,2})")


@lru_cache(maxsize=4096)
def version_tag(model: str, version: str) -> str:
    """Of a key, for a model's version."""
    return blake2b(f"{model}/{version}".encode(), digest_size=6).hexdigest()


# --- written ------------------------------------------------------------------------------


def serves_entries(stages: Iterable[Where]) -> dict[str, list[Any]]:
    """The stages that a node serves, as the keys and values that it gossips."""
    entries: dict[str, list[Any]] = {}
    for model, version, stage in sorted(set(stages)):
        key = f"serves/{version_tag(model, version)}"
        entries.setdefault(key, [model, version, []])[2].append(stage)
    return entries


def takes_entries(stages: Iterable[Where]) -> dict[str, list[Any]]:
    """The stages that a standby has taken, as the keys and values that it gossips."""
    serves = serves_entries(stages)
    return {key.replace("serves/", "takes/", 1): value for key, value in serves.items()}


def load_entries(loads: Mapping[Where, Sequence[int]]) -> dict[str, list[list[int]]]:
    """The loads of a node's stages (`LOAD_FIELDS` numbers each), as the keys and values that it
    gossips. A number out of range is told as the nearest one in it."""
    entries: dict[str, list[list[int]]] = {}
    for where in sorted(loads):
        model, version, stage = where
        numbers = [
            min(max(n, 0), most) for n, most in zip(loads[where], _LARGEST_LOAD, strict=True)
        ]
        key = f"load/{version_tag(model, version)}/{stage // STAGES_PER_LOAD_KEY}"
        entries.setdefault(key, []).append([stage, *numbers])
    return entries


def busy_entries(busy: Mapping[Where, float]) -> dict[str, list[list[int]]]:
    """The utilisations (0..1) of a node's stages, as the keys and values that it gossips."""
    entries: dict[str, list[list[int]]] = {}
    for where in sorted(busy):
        model, version, stage = where
        key = f"busy/{version_tag(model, version)}/{stage // STAGES_PER_LOAD_KEY}"
        entries.setdefault(key, []).append([stage, round(1e3 * min(1.0, max(0.0, busy[where])))])
    return entries


def holds_entry(
    where: Where, sessions: int, slots: int, follows: bool, marks: bytes
) -> tuple[str, list[Any]]:
    """The key and value by which a node tells of a language model's stage."""
    model, version, stage = where
    return f"holds/{version_tag(model, version)}/{stage}", [sessions, slots, follows, marks]


def learns_entry(
    model: str, version: str, base: bytes, epoch: int, run: int, sequence: int
) -> tuple[str, list[Any]]:
    """The key and value by which a node tells what it learns; base: SHA-256 of its beginning."""
    value = [model, version, base[:BASE_BYTES], epoch, run, sequence]
    return f"learns/{version_tag(model, version)}", value


def burns_entry(model: str, what: str) -> tuple[str, list[str]]:
    """The key and value by which a node that answers requests tells that an objective burns."""
    return f"burns/{version_tag(model, '')}", [model, what]


def of_load(key: str) -> bool:
    """Whether a gossiped key says how busy a node is, rather than what it serves or where it is."""
    busy = ("memory", "link_wait", "link_rate")
    if key in busy or key.startswith(_LOADS):
        return True
    entry = _of_features().get(key.partition("/")[0])
    return entry is not None and entry.of_load


# --- judged -------------------------------------------------------------------------------


def valid(key: str, value: object) -> bool:
    """Whether a peer's value is of the right kind and in range; unknown keys are carried."""
    kind, slash, rest = key.partition("/")
    if slash:
        keyed = _KEYED.get(kind)
        if keyed is not None:
            return keyed(rest, value)  # type: ignore[no-any-return]
    elif (check := _CHECKS.get(key)) is not None:
        return check(value)  # type: ignore[no-any-return]
    entry = _of_features().get(kind)
    return entry is None or entry.valid(rest, value)


@cache
def _of_features() -> Mapping[str, GossipEntry]:
    return {kind: each for feature in features() for kind, each in feature.gossip().items()}


def _token(value: object) -> bool:
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


def _serves(tag: str, value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 3):  # gossip reads lists as tuples
        return False
    model, version, stages = value
    return (
        _token(model)
        and _token(version)
        and tag == version_tag(model, version)
        and isinstance(stages, list | tuple)
        and 1 <= len(stages) <= MAX_STAGES
        and _ascending(stages)
    )


def _learns(tag: str, value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 6):
        return False
    model, version, base, *numbers = value
    return (
        _token(model)
        and _token(version)
        and tag == version_tag(model, version)
        and isinstance(base, bytes)
        and len(base) == BASE_BYTES
        and all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
    )


def _answers(value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 2):
        return False
    return (value[0] == EVERY_MODEL or _token(value[0])) and type(value[1]) is bool


def _burns(tag: str, value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 2):
        return False
    model, what = value
    return (
        _token(model)
        and tag == version_tag(model, "")
        and isinstance(what, str)
        and len(what) <= 40
    )


def _load(rest: str, value: object, row_is_good: Callable[[object], bool]) -> bool:
    named = _LOAD_KEY.fullmatch(rest)
    return (
        named is not None
        and isinstance(value, list | tuple)
        and all(row_is_good(row) for row in value)
        and _ascending([row[0] for row in value])
        and all(row[0] // STAGES_PER_LOAD_KEY == int(named[1]) for row in value)
    )


def _row(row: object) -> bool:
    return (
        isinstance(row, list | tuple)
        and len(row) == 1 + LOAD_FIELDS
        and all(type(n) is int for n in row)
        and all(0 <= n <= most for n, most in zip(row[1:], _LARGEST_LOAD, strict=True))
    )


def _holds(rest: str, value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 4):
        return False
    *counts, follows, marks = value
    return (
        _HOLDS_KEY.fullmatch(rest) is not None
        and all(type(count) is int and 0 <= count <= MAX_COUNT for count in counts)
        and type(follows) is bool
        and isinstance(marks, bytes)
        and len(marks) <= MOST_MARKS
    )


def _busy_row(row: object) -> bool:
    return (
        isinstance(row, list | tuple)
        and len(row) == 2
        and all(type(n) is int for n in row)
        and 0 <= row[1] <= 1000
    )


def is_weight(value: object) -> bool:
    """Whether a node may have this weight in routing."""
    return type(value) in (int, float) and LEAST_WEIGHT <= value <= MOST_WEIGHT  # type: ignore[operator]


def _codecs(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= MAX_CODECS
        and all(type(name) is str and 0 < len(name) <= LONGEST_CODEC for name in value)
    )


def _ascending(stages: Sequence[object]) -> bool:
    """Stage numbers, each once, in order."""
    last = -1
    for stage in stages:
        if type(stage) is not int or not last < stage <= MAX_STAGE:
            return False
        last = stage
    return True


_CHECKS: dict[str, Any] = {
    "role": lambda v: _token(v),
    "draining": lambda v: type(v) is bool,
    "host": lambda v: v == "" or _token(v),
    "inbox": lambda v: isinstance(v, str) and len(v) <= 128,
    "device": lambda v: _token(v),
    "memory": lambda v: type(v) is int and 0 <= v < 1 << 60,
    "priority": lambda v: type(v) is int and 0 <= v <= 9,
    "link_wait": lambda v: type(v) is int and 0 <= v <= MAX_LINK_WAIT_MS,
    "link_rate": lambda v: type(v) is int and 0 <= v < 1 << 60,
    "codecs": lambda v: _codecs(v),
    "weight": lambda v: is_weight(v),
    ANSWERS: lambda v: _answers(v),
    IDENTITY: is_attestation,
}
_KEYED: dict[str, Any] = {
    "serves": _serves,
    "takes": _serves,
    "load": lambda rest, value: _load(rest, value, _row),
    "busy": lambda rest, value: _load(rest, value, _busy_row),
    "holds": _holds,
    "learns": _learns,
    "burns": _burns,
}


# --- read ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagePeer:
    """One node that serves a stage, as gossip tells it. link_wait: seconds. link_rate: bytes a
    second, 0.0 where it is fast or unknown. codecs: those that it reads. holds: of a language
    model's stage, see `holds_entry`."""

    node: str
    priority: int
    host: str
    draining: bool
    inbox: str = ""
    link_wait: float = 0.0
    link_rate: float = 0.0
    codecs: frozenset[str] = frozenset()
    holds: tuple[int, int, bool, bytes] = _HOLDS_NOTHING


def serving(peers: Iterable[PeerView], model: str, version: str, stage: int) -> list[StagePeer]:
    """The peers that serve a stage, in no order."""
    found = []
    tag = version_tag(model, version)
    key, taking, holding = f"serves/{tag}", f"takes/{tag}", f"holds/{tag}/{stage}"
    for peer in peers:
        values = peer.values
        entry = values.get(key)
        if isinstance(entry, list | tuple) and stage in entry[2]:
            takes = values.get(taking)
            is_taken = isinstance(takes, list | tuple) and stage in takes[2]
            holds = values.get(holding)
            found.append(
                StagePeer(
                    peer.node,
                    PRIMARY if is_taken else _int(values.get("priority")),
                    str(values.get("host", "")),
                    values.get("draining") is True,
                    str(values.get("inbox", "")),
                    _int(values.get("link_wait")) / 1e3,
                    float(_int(values.get("link_rate"))),
                    _names(values.get("codecs")),
                    tuple(holds) if isinstance(holds, list | tuple) else _HOLDS_NOTHING,
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class Answerer:
    """A node that answers requests. model: the one that it answers for, or `EVERY_MODEL`. tells:
    whether it sends notices of what it has in hand, which one of an older version does not."""

    node: str
    model: str
    may_witness: bool
    tells: bool = True


def answerers(peers: Iterable[PeerView]) -> list[Answerer]:
    """The living nodes that answer requests, this one included; who is suspected is no witness."""
    found = []
    for peer in peers:
        if peer.state in ("dead", "left"):
            continue
        values = peer.values
        said = values.get(ANSWERS)
        if isinstance(said, list | tuple):
            able = peer.state == "alive" and values.get("draining") is not True and said[1]
            found.append(Answerer(peer.node, said[0], able))
        elif values.get("role") in ANSWERING:
            models = served_models(values) or {EVERY_MODEL}
            found += [Answerer(peer.node, model, False, tells=False) for model in models]
    return found


def served_models(values: Mapping[str, object]) -> set[str]:
    """The models of which a node serves a stage."""
    entries = [value for key, value in values.items() if key.startswith("serves/")]
    return {entry[0] for entry in entries if isinstance(entry, list | tuple)}


def identity_of(peer: PeerView, mesh: str) -> str | None:
    """The public key of a node that its gossip proves to be its own, or None."""
    return attested_key(peer.values.get(IDENTITY), mesh, peer.node)


@dataclass(frozen=True, slots=True)
class LearnerPeer:
    """One node that learns a model version. key: its public key; run, sequence: how far it is."""

    node: str
    key: str
    run: int
    sequence: int


def learners(
    peers: Iterable[PeerView], mesh: str, model: str, version: str, base: bytes, epoch: int
) -> list[LearnerPeer]:
    """The peers that learn this version from this base in this epoch, each with a key that it
    proved to be its own."""
    found = []
    entry = f"learns/{version_tag(model, version)}"
    for peer in peers:
        value = peer.values.get(entry)
        if peer.state in ("dead", "left") or not isinstance(value, list | tuple):
            continue
        key = identity_of(peer, mesh)
        if key is not None and (value[2], value[3]) == (base[:BASE_BYTES], epoch):
            found.append(LearnerPeer(peer.node, key, value[4], value[5]))
    return found


def candidates(peers: Mapping[str, PeerView], heard: float | None = None) -> list[Candidate]:
    """The primaries of the mesh as routing sees them: one candidate a node and stage."""
    at = time.monotonic() if heard is None else heard
    found = []
    for peer in peers.values():
        if peer.state in ("dead", "left") or _int(peer.values.get("priority")) != 0:
            continue
        for (model, version, stage), numbers in stage_loads(peer.values):
            memory, weight = peer.values.get("memory"), peer.values.get("weight")
            found.append(
                Candidate(
                    peer.node,
                    stage,
                    {model: frozenset([version])},
                    load=numbers[0],
                    in_flight=numbers[1],
                    compute_ewma_s=numbers[2] / 1e6,
                    compute_p50_s=numbers[3] / 1e6,
                    compute_p99_s=numbers[4] / 1e6,
                    queue_ewma_s=numbers[5] / 1e6,
                    queue_p50_s=numbers[6] / 1e6,
                    queue_p99_s=numbers[7] / 1e6,
                    weight=weight if isinstance(weight, int | float) else 1.0,
                    memory_free_bytes=memory if isinstance(memory, int) else None,
                    device=str(peer.values.get("device", "cpu")),
                    draining=peer.values.get("draining") is True,
                    suspected=peer.state == "suspect",
                    heard=at,
                )
            )
    return found


def stage_loads(values: Mapping[str, object]) -> list[tuple[Where, Sequence[int]]]:
    """The stages that a node serves, each with its load (`LOAD_FIELDS` numbers); without a load, it
    counts as idle."""
    found: list[tuple[Where, Sequence[int]]] = []
    for key, value in values.items():
        kind, slash, tag = key.partition("/")
        if kind != "serves" or not slash or not isinstance(value, list | tuple):
            continue
        model, version, stages = value
        loads: dict[int, Sequence[int]] = {}
        for chunk in {stage // STAGES_PER_LOAD_KEY for stage in stages}:
            rows = values.get(f"load/{tag}/{chunk}")
            if isinstance(rows, list | tuple):
                loads |= {row[0]: row[1:] for row in rows}
        found += [((model, version, stage), loads.get(stage, _IDLE_LOAD)) for stage in stages]
    return found[:MAX_CANDIDATES]


def stage_busy(values: Mapping[str, object], where: Where) -> float:
    """The share of the time in which a node computes a stage, 0..1; 0.0 where it does not tell."""
    model, version, stage = where
    rows = values.get(f"busy/{version_tag(model, version)}/{stage // STAGES_PER_LOAD_KEY}")
    if not isinstance(rows, list | tuple):
        return 0.0
    return next((row[1] / 1e3 for row in rows if row[0] == stage), 0.0)


def takes_of(values: Mapping[str, object]) -> list[Where]:
    """The stages that a standby has taken."""
    entries = [value for key, value in values.items() if key.startswith("takes/")]
    return [(e[0], e[1], stage) for e in entries if isinstance(e, list | tuple) for stage in e[2]]


def stages_of(values: Mapping[str, object], model: str, version: str) -> list[int]:
    """The stages of a version that a node serves."""
    entry = values.get(f"serves/{version_tag(model, version)}")
    return list(entry[2]) if isinstance(entry, list | tuple) else []


def burning_models(peers: Iterable[PeerView]) -> frozenset[str]:
    """The models whose objective burns, by those that answer requests."""
    return frozenset(
        value[0]
        for peer in peers
        for key, value in peer.values.items()
        if key.startswith("burns/") and isinstance(value, list | tuple)
    )


def _names(value: object) -> frozenset[str]:
    return frozenset(value) if isinstance(value, list | tuple) else frozenset()


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
