"""What requesters report of a rollout, and what its judges state: JSON documents.

A report goes to the judges, a statement to all requesters. Both are measurements; neither changes
desired state.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from swarm.errors import DecodeError
from swarm.rollout.verdict import GuardCounts, Verdict
from swarm.subjects import TOKEN

VERSION = 1
MOST_BYTES = 16384
MOST_COUNT = 1 << 53
MOST_STEP = 1 << 20
MOST_SECONDS = 1e10
MOST_REASON = 300  # characters


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """What one requester has observed of one plan. step: at which it stands, -1 before the first.
    total, recent: by guard, in the plan's order. cannot_run: why the version cannot run on the
    node that reports, "" where it can."""

    reporter: str
    plan: str
    step: int
    total: tuple[GuardCounts, ...]
    recent: tuple[GuardCounts, ...]
    cannot_run: str = ""

    def encode(self) -> bytes:
        """As it travels."""
        return json.dumps({"v": VERSION} | asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RolloutReport:
        """Raises `DecodeError`."""
        doc = _document(data)
        return cls(
            _token(doc, "reporter"),
            _token(doc, "plan"),
            _whole(doc.get("step"), "step", -1, MOST_STEP),
            _counts(doc, "total"),
            _counts(doc, "recent"),
            _reason(doc, "cannot_run"),
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """What one judge says of one plan.

    ready: every stage has a node that serves the new version. held: seconds for which the guards
    have held. total, recent, verdicts: by guard, over all reports. verdict: of all guards, and bad
    where a node cannot run the version, which `cannot_run` tells of.
    """

    judge: str
    plan: str
    ready: bool
    held: float
    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    total: tuple[GuardCounts, ...]
    recent: tuple[GuardCounts, ...]
    cannot_run: str = ""

    def encode(self) -> bytes:
        """As it travels."""
        doc = {"v": VERSION} | asdict(self)
        doc["held_s"] = round(doc.pop("held"), 3)
        return json.dumps(doc).encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Statement:
        """Raises `DecodeError`."""
        doc = _document(data)
        held, listed = doc.get("held_s"), doc.get("verdicts")
        if isinstance(held, bool) or not isinstance(held, int | float):
            raise DecodeError("a statement's held_s must be a number of seconds")
        if not 0 <= held <= MOST_SECONDS:
            raise DecodeError("a statement's held_s is out of range")
        if not isinstance(listed, list) or type(doc.get("ready")) is not bool:
            raise DecodeError(
                "a statement says of each guard how it stands, and whether all is ready"
            )
        try:
            verdicts = tuple(map(Verdict, listed))
            overall = Verdict(str(doc.get("verdict")))
        except ValueError:
            raise DecodeError("a statement's verdict is good, bad, doubt or few") from None
        total, recent = _counts(doc, "total"), _counts(doc, "recent")
        if not len(verdicts) == len(total) == len(recent):
            raise DecodeError("a statement has one verdict and two counts for each guard")
        return cls(
            judge=_token(doc, "judge"),
            plan=_token(doc, "plan"),
            ready=doc["ready"],
            held=float(held),
            verdict=overall,
            verdicts=verdicts,
            total=total,
            recent=recent,
            cannot_run=_reason(doc, "cannot_run"),
        )


def _document(data: bytes | memoryview) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise DecodeError(f"{len(data)} bytes are no report of a rollout")
    try:
        doc = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise DecodeError("no JSON") from None
    if not isinstance(doc, dict) or doc.get("v") != VERSION:
        raise DecodeError("no document of version 1")
    return doc


def _token(doc: dict[str, Any], name: str) -> str:
    value = doc.get(name)
    if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
        raise DecodeError(f"field {name!r} must be letters, digits, '_' or '-'")
    return value


def _reason(doc: dict[str, Any], name: str) -> str:
    value = doc.get(name, "")
    if not isinstance(value, str) or len(value) > MOST_REASON:
        raise DecodeError(f"field {name!r} must be a text of at most {MOST_REASON} characters")
    return value


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise DecodeError(f"field {name!r} must be a whole number from {least} on")
    return value


def _counts(doc: dict[str, Any], name: str) -> tuple[GuardCounts, ...]:
    rows = doc.get(name)
    if not isinstance(rows, list) or len(rows) > 64:
        raise DecodeError(f"field {name!r} must be a list of counts")
    counts = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            raise DecodeError(f"field {name!r} must hold pairs of counts")
        n, bad = (_whole(value, name, 0, MOST_COUNT) for value in row)
        if bad > n:
            raise DecodeError(f"field {name!r} has more bad observations than observations")
        counts.append(GuardCounts(n, bad))
    return tuple(counts)
