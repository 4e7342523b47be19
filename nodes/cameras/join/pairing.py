"""Which results of several edges show the same moment. Pure; times in seconds of one clock.

A view waits for the others of its moment until each of them is there, or has shown a later moment,
or `deadline` has passed since it came. Then what is there goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MOST_WAITING = 64  # views of one edge; from then on the oldest moment goes on as it is


@dataclass(frozen=True, slots=True)
class View:
    """One edge's result. captured: when its picture was taken. arrived: when it came here."""

    edge: str
    captured: float
    arrived: float
    result: Any = None


@dataclass(frozen=True, slots=True)
class Pairing:
    """within: the longest time between two captures of one moment. waiting: by edge, the earliest
    capture first."""

    edges: tuple[str, ...]
    within: float
    deadline: float
    waiting: Mapping[str, tuple[View, ...]] = field(default_factory=dict)

    @property
    def due(self) -> float | None:
        """When a view will have waited long enough; None where none waits."""
        arrived = [view.arrived for views in self.waiting.values() for view in views]
        return min(arrived) + self.deadline if arrived else None


Moment = Mapping[str, View]  # by edge; at least one


def step(state: Pairing, view: View | None, now: float) -> tuple[Pairing, list[Moment]]:
    """The state after a view has come, or after time has passed (None), and the moments that go on,
    the earliest first. A view of an edge that is not joined is left out. Each other view goes on
    once."""
    if view is not None and view.edge in state.edges:
        views = sorted((*state.waiting.get(view.edge, ()), view), key=lambda each: each.captured)
        state = replace(state, waiting={**state.waiting, view.edge: tuple(views)})
    moments: list[Moment] = []
    while (moment := _earliest(state)) and _goes_on(state, moment, now):
        rest = {
            edge: tuple(each for each in views if each is not moment.get(edge))
            for edge, views in state.waiting.items()
        }
        state = replace(state, waiting=rest)
        moments.append(moment)
    return state, moments


def _earliest(state: Pairing) -> dict[str, View]:
    """The earliest view that waits, and each other edge's earliest one that is near enough."""
    firsts = {edge: views[0] for edge, views in state.waiting.items() if views}
    if not firsts:
        return {}
    begin = min(view.captured for view in firsts.values())
    return {e: view for e, view in firsts.items() if view.captured - begin <= state.within}


def _goes_on(state: Pairing, moment: Moment, now: float) -> bool:
    # An edge whose earliest view is not of this moment has passed it already.
    is_decided = all(edge in moment or state.waiting.get(edge) for edge in state.edges)
    is_full = any(len(views) > MOST_WAITING for views in state.waiting.values())
    return is_decided or is_full or (state.due is not None and state.due <= now)
