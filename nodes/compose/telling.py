"""What the hop of a composition tells of its parts: always how long each took, and of a traced
request what each asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shards.compose.composition import (
    AskPart,
    ChoosePart,
    Composition,
    FirstPart,
    NearestPart,
    OperatePart,
    Part,
    needed,
)
from shards.compose.run import PartRun
from swarm.tracing.inside import MOST_ASKS, InnerAsk, InnerWork, told_inside
from swarm.tracing.traceparent import below, is_sampled
from swarm.wire.hops import KEPT, WEIGHTS_OF
from swarm.wire.messages import Result
from swarm.wire.unfamiliar import SCORE

LONGEST_REASON = 200  # characters of why a part was left out


def told(parts: Mapping[str, PartRun]) -> dict[str, Any]:
    """How many milliseconds each part took, and which were left out, or failed, and why."""
    now = time.monotonic()
    failed = {name: part.failed[:LONGEST_REASON] for name, part in parts.items() if part.failed}
    return {
        "parts": {
            name: round(((part.ended or now) - part.began) * 1e3, 3) for name, part in parts.items()
        },
        "left_out": {
            name: part.left_out[:LONGEST_REASON] for name, part in parts.items() if part.left_out
        },
        **({"failed": failed} if failed else {}),
    }


@dataclass(frozen=True, slots=True)
class Recalled:
    """rows: answered by kept answers, of so many. age: seconds of the oldest of these. weights:
    that these were computed with."""

    rows: int = 0
    of: int = 0
    age: float = 0.0
    weights: frozenset[int] = field(default=frozenset(), compare=False)

    def __add__(self, other: Recalled) -> Recalled:
        rows, of = self.rows + other.rows, self.of + other.of
        return Recalled(rows, of, max(self.age, other.age), self.weights | other.weights)


def what_is(part: Part) -> str:
    """In a word: the model that it asks, how it chooses, or its operator."""
    match part:
        case AskPart():
            return f"{part.model}@{part.version}"
        case OperatePart():
            return part.operator
        case NearestPart():
            return "nearest"
        case ChoosePart():
            return "choose"
        case FirstPart():
            return "first"


class AskedParts:
    """What the parts of one run ask, where its request is traced. traceparent: its header. own:
    whether this node sends the spans of what it asks itself."""

    def __init__(self, traceparent: str, own: bool = False) -> None:
        self.is_traced = is_sampled(traceparent)
        self._header = traceparent
        self._own = own
        self._spans: dict[str, tuple[str, str]] = {}
        self._answers: dict[str, list[tuple[float, float, Result]]] = {}
        self._counts: dict[str, int] = {}
        self._recalled: dict[str, Recalled] = {}
        self._scores: dict[str, float] = {}
        self._weights: dict[str, set[int]] = {}

    def header(self, part: str) -> str:
        """What a part asks with: its span is the parent of what it asks."""
        if not self.is_traced:
            return self._header
        if part not in self._spans:
            self._spans[part] = below(self._header)
        return self._spans[part][0]

    def answered(self, part: str, asked: float, answer: Result) -> None:
        """A request of a part was answered; asked: `time.monotonic()`."""
        if score := answer.unfamiliarity:
            self._scores[part] = max(score, self._scores.get(part, 0.0))
        self._weights.setdefault(part, set()).add(answer.weights)
        if self.is_traced:
            self._counts[part] = self._counts.get(part, 0) + 1
            answers = self._answers.setdefault(part, [])
            if len(answers) < MOST_ASKS:
                answers.append((asked, time.monotonic(), answer))

    def recalled(self, part: str, rows: Recalled) -> None:
        """So much of a part was not asked for, since the answers were kept."""
        before = self._recalled.get(part)
        self._recalled[part] = rows if before is None else before + rows
        self._weights.setdefault(part, set()).update(rows.weights)

    def weights(self) -> dict[str, Any]:
        """A field of the hop where models have learned: by part, the weight versions that answered,
        or that kept answers were computed with."""
        told = {name: sorted(found) for name, found in self._weights.items() if any(found)}
        return {WEIGHTS_OF: told} if told else {}

    def unfamiliar(self) -> dict[str, Any]:
        """Fields of the hop where models have guards: the highest score, and the parts that were
        asked for what their models are not made for."""
        if not self._scores:
            return {}
        far = {name: score for name, score in self._scores.items() if score > 1}
        told = {SCORE: max(self._scores.values())}
        return told | ({"unfamiliar_parts": far} if far else {})

    def cached(self) -> dict[str, Any]:
        """A field of the hop where a part keeps answers: by part, how many of its rows were kept
        ones, of how many, and the age of the oldest in milliseconds."""
        if not self._recalled:
            return {}
        return {
            KEPT: {
                name: {"rows": each.rows, "of": each.of, "age_ms": round(each.age * 1e3, 3)}
                for name, each in self._recalled.items()
            }
        }

    def told(
        self, composition: Composition, parts: Mapping[str, PartRun], started: float
    ) -> dict[str, Any]:
        """Fields of the hop. started: `time.monotonic()`, of the run."""
        now = time.monotonic()
        return told_inside(
            [self._work(composition, name, run, started, now) for name, run in parts.items()]
        )

    def _work(
        self, composition: Composition, name: str, run: PartRun, started: float, now: float
    ) -> InnerWork:
        part = composition.parts[name]
        about: dict[str, str | int | float | bool] = {}
        match part:
            case AskPart():
                about["model"] = f"{part.model}@{part.version}"
                about["requests"] = self._counts.get(name, 0)
                if part.each_row:
                    about["rows"] = run.rows
            case OperatePart():
                about["operator"] = part.operator
            case NearestPart():
                about |= {"index": part.index, "rows": run.rows}
        if run.taken:
            about["taken"] = run.taken
        if run.left_out:
            about["left_out"] = run.left_out
        if run.failed:
            about["failed"] = run.failed
        if not run.ended:
            about["cancelled"] = True
        asks = [
            InnerAsk(_us(asked - started), _us(ended - asked), answer.hops)
            for asked, ended, answer in self._answers.get(name, ())
        ]
        return InnerWork(
            name,
            _us(run.began - started),
            _us((run.ended or now) - run.began),
            self._spans.get(name, ("", ""))[1],
            tuple(dict.fromkeys(needed(part))),
            about,
            tuple(asks),
            self._own,
        )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
