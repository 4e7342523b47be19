"""Node ids, cut for people: the shortest ends that tell the nodes of a table apart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

SHORTEST = 4  # characters of an end that a person can still search for
WHOLE = 10  # an id up to this length is shown whole
CUT = "…"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """A label for each id: the id itself where it is short, else `…` and its shortest end that no
    other id has. Labels of different ids differ; an id always ends with its label's end.

    Ends and not beginnings: an id is `<role>-<host>-<random>`, and nodes share role and host.
    """
    backwards = sorted({node[::-1] for node in ids})
    # Sorted backwards, the ids that share the longest end with an id are its neighbours.
    shared = dict.fromkeys(backwards, 0)
    for one, other in pairwise(backwards):
        common = _common(one, other)
        shared[one] = max(shared[one], common)
        shared[other] = max(shared[other], common)
    return {node[::-1]: _label(node[::-1], shared[node]) for node in backwards}


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _label(node: str, shared: int) -> str:
    end = max(SHORTEST, shared + 1)
    return node if len(node) <= WHOLE or end + len(CUT) >= len(node) else CUT + node[-end:]
