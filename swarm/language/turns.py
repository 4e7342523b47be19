"""Which sessions compute in a stage's next turn. Pure.

Sessions that decode run together, one run for each contiguous range of slots; beside them runs one
chunk of one prompt, so that neither waits for the whole of the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.language.session import Session
from swarm.language.steps import TokenStep


@dataclass(frozen=True, slots=True)
class StageRun:
    """One run of a stage: steps of sessions in slots that follow each other."""

    slot: int
    steps: tuple[tuple[Session, TokenStep], ...]


def plan(ready: Iterable[tuple[Session, TokenStep]]) -> list[StageRun]:
    """The runs of a turn. ready: the next step of each session, those that wait longest first."""
    chunk: StageRun | None = None
    single: dict[int, tuple[Session, TokenStep]] = {}
    for session, step in ready:
        if len(step.fed) == 1:
            single[session.slot] = (session, step)
        elif chunk is None:
            chunk = StageRun(session.slot, ((session, step),))
    runs = [StageRun(slots[0], tuple(single[slot] for slot in slots)) for slots in ranges(single)]
    return runs if chunk is None else [*runs, chunk]


def ranges(slots: Iterable[int]) -> list[list[int]]:
    """Numbers in order, those that follow each other together."""
    found: list[list[int]] = []
    for slot in sorted(slots):
        if found and slot == found[-1][-1] + 1:
            found[-1].append(slot)
        else:
            found.append([slot])
    return found
