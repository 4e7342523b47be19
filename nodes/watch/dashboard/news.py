"""Events of the fleet as lines that people read: pure."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodes.cli.fields import one_line
from swarm.subjects import TOKEN

MOST_EVENTS = 1000
ECHO = 5000  # ms in which several nodes tell of the same
LONGEST_DETAIL = 400  # characters
BAD = frozenset({"died", "duplicate", "store-full", "store-gone", "server-start-failed"})
WARN = frozenset(
    {
        "suspected",
        "took-over",
        "rejected",
        "watchdog",
        "server-restarted",
        "rolled-back",
        "clock-stepped",
    }
)
GOOD = frozenset({"gave-back", "refuted", "returned", "put-back", "rolled-out"})
TOLD_BY_SEVERAL = frozenset({"clock-stepped"})  # in the same words
ABOUT_OTHERS = frozenset(
    {"died", "suspected", "refuted", "returned", "duplicate", "left", "joined"}
)


@dataclass(frozen=True, slots=True)
class NewsEntry:
    """One event. at: ms since 1970, by the clock of who heard it. level: bad, warn, good or note.
    node: whom it is about; teller: who said it."""

    number: int
    at: int
    kind: str
    level: str
    node: str
    teller: str
    model: str
    text: str

    def as_doc(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Newspaper:
    """The last events, oldest first."""

    def __init__(self) -> None:
        self.events: deque[NewsEntry] = deque(maxlen=MOST_EVENTS)
        self._numbers = itertools.count(1)
        self._seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()

    def add(self, document: Mapping[str, Any], at: int | None) -> NewsEntry | None:
        """An event that was heard at `at`, ms since 1970; None: it happened before, at the moment
        that it names. Returns None for one that is here already."""
        kind = document["kind"]
        identity = (kind, document.get("node"), document.get("at"), str(document.get("subject")))
        moment = told_at(document) if at is None else at
        about = document.get("subject") or document.get("node")
        words = sentence(kind, document)
        last = next(
            (
                n
                for n in reversed(self.events)
                if n.kind == kind
                and (n.text == words if kind in TOLD_BY_SEVERAL else n.node == about)
            ),
            None,
        )
        if identity in self._seen or (last is not None and _is_echo(last, moment)):
            return None
        self._seen[identity] = None
        while len(self._seen) > 2 * MOST_EVENTS:
            self._seen.popitem(last=False)
        teller = _token(document.get("node"))
        subject = _token(document.get("subject"))
        node = subject if subject and kind in ABOUT_OTHERS else teller
        news = NewsEntry(
            number=next(self._numbers),
            at=moment or 0,
            kind=kind,
            level=level_of(kind, document),
            node=node,
            teller=teller,
            model=_token(document.get("model")),
            text=words,
        )
        self.events.append(news)
        return news

    def since(self, number: int) -> Iterable[NewsEntry]:
        """Events behind this number."""
        return [news for news in self.events if news.number > number]


def _is_echo(last: NewsEntry, at: int | None) -> bool:
    """Whether it was told of already: of a node that joins or leaves by itself or by a peer, of a
    server by nodes of its other lanes."""
    return last.kind in ("joined", "left", *TOLD_BY_SEVERAL) and abs((at or 0) - last.at) < ECHO


def level_of(kind: str, document: Mapping[str, Any]) -> str:
    """How much an event matters to people."""
    if kind == "learning":
        what = document.get("what")
        return "warn" if what in ("blocked", "reverted", "failed", "doubted") else "note"
    if kind == "slo":
        return "bad" if document.get("burning") else "good"
    if kind in BAD:
        return "bad"
    if kind in WARN:
        return "warn"
    return "good" if kind in GOOD else "note"


def sentence(kind: str, document: Mapping[str, Any]) -> str:
    """What an event says beside its kind and its node."""
    stage = document.get("stage")
    at_stage = f"stage {stage}" if isinstance(stage, int) and 0 <= stage < 1000 else ""
    model = _token(document.get("model"))
    what = document.get("what")
    weights = document.get("weights")
    parts = [
        what if isinstance(what, str) else "",
        f"weight version {weights}" if isinstance(weights, int) and 0 <= weights < 10**9 else "",
        " of ".join(part for part in (at_stage, model) if part),
        document["detail"] if isinstance(document.get("detail"), str) else "",
        *(
            f"{name}: {', '.join(map(str, words[:8]))}"
            for name in ("lost", "kept", "restored")
            if isinstance(words := document.get(name), list) and words
        ),
    ]
    return one_line(" · ".join(part for part in parts if part))[:LONGEST_DETAIL]


def told_at(document: Mapping[str, Any]) -> int | None:
    """The moment that an event names, ms since 1970; None where it names none."""
    at = document.get("at")
    if not isinstance(at, str) or len(at) > 40:
        return None
    try:
        return int(datetime.fromisoformat(at).timestamp() * 1e3)
    except (ValueError, OverflowError):
        return None


def _token(value: object) -> str:
    return value if isinstance(value, str) and TOKEN.fullmatch(value) is not None else ""
