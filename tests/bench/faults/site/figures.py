"""Whether a site's answers are all there, once, in order and right; and how soon they came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.report.figure import percentile


@dataclass(frozen=True, slots=True)
class Submitted:
    """A stored request. took: seconds of `submit`. at: when it was stored; number: its ticket's."""

    number: int
    at: float
    took: float


@dataclass(frozen=True, slots=True)
class Came:
    """An answer that was read. right: it is the whole model's."""

    number: int
    at: float
    right: bool


def site_figures(
    submitted: Sequence[Submitted],
    came: Mapping[str, Sequence[Came]],
    cut_at: float,
    healed_at: float,
) -> dict[str, Any]:
    """came: by agent. Times are seconds of one clock."""
    wanted = {each.number for each in submitted}
    times = Counter(each.number for answers in came.values() for each in answers)
    answers = [each for each_agent in came.values() for each in each_agent]
    before = {each.number for each in submitted if each.at <= healed_at}
    behind = [each.at - healed_at for each in answers if each.at > healed_at]
    late = [each.at - healed_at for each in answers if each.number in before]
    cut = [each.took for each in submitted if cut_at < each.at <= healed_at]
    linked = [each.took for each in submitted if not cut_at < each.at <= healed_at]
    return {
        "requests": len(submitted),
        "submitted_while_cut": len(cut),
        "lost": len(wanted - times.keys()),
        "twice": sum(count - 1 for count in times.values()),
        "wrong": sum(not each.right for each in answers),
        "out_of_order": sum(_disorder([each.number for each in a]) for a in came.values()),
        "answered_while_cut": sum(cut_at + 1 < each.at < healed_at for each in answers),
        "first_answer_after_s": round(min(behind, default=-1.0), 3),
        "caught_up_after_s": round(max(late, default=-1.0), 3),
        "submit_cut_p50_ms": round(percentile(cut, 0.5) * 1e3, 3),
        "submit_cut_p99_ms": round(percentile(cut, 0.99) * 1e3, 3),
        "submit_linked_p50_ms": round(percentile(linked, 0.5) * 1e3, 3),
    }


def _disorder(numbers: Sequence[int]) -> int:
    return sum(later <= earlier for earlier, later in pairwise(numbers))


def failures(doc: Mapping[str, Any]) -> list[str]:
    """Why a run has not passed, for people."""
    return [
        f"{doc[name]} {name.replace('_', ' ')}"
        for name in ("lost", "twice", "wrong", "out_of_order")
        if doc[name]
    ]
