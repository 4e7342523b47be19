"""A run of several sessions, made so that one of them fails for itself alone. In the thread.

A run that raises is made again in halves, down to single sessions. What a session's run gives is a
function of its own input and position, and is written to its own slot, so the others' results are
those that the whole run would have given.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nodes.stage.batching import split_on_failure
from shards.errors import RunError
from shards.language.kv_stage import KvStage
from swarm.language.turns import StageRun

# A part of a run, and what came of it.
Ran = tuple[StageRun, np.ndarray | Exception]


def run_members(decoder: KvStage, run: StageRun, lacks: Mapping[int, Exception]) -> list[Ran]:
    """All sessions of a run, in parts. lacks: slots that do not hold the beginning that their
    session was to have, and why. A part with an error has one session. Of n sessions one that fails
    costs 2 * ceil(log2(n)) further runs at most, and those that cannot be begun cost no time."""
    try:
        return [(run, _run(decoder, run, lacks))]
    except Exception as error:
        halves = split_on_failure(run.steps)
        if halves is None:
            return [(run, error)]
    first, second = halves
    parts = (StageRun(run.slot, tuple(first)), StageRun(run.slot + len(first), tuple(second)))
    return [each for part in parts for each in run_members(decoder, part, lacks)]


def _run(decoder: KvStage, run: StageRun, lacks: Mapping[int, Exception]) -> np.ndarray:
    steps = [step for _, step in run.steps]
    for slot, step in enumerate(steps, run.slot):
        if step.position and slot in lacks:
            raise lacks[slot]
    positions = np.array([step.position for step in steps], np.int64)
    if decoder.first:
        rows = np.array([step.fed for step in steps], np.int64)
    else:
        given = [step.rows for step in steps if step.rows is not None]
        rows = given[0][None] if len(given) == 1 else np.stack(given)
    wanted = 1 + len(steps[0].drafts) if decoder.last else 1
    made = decoder.run(rows, run.slot, positions, logits=wanted)
    # The last stage chooses by its logits, of which some may be infinite.
    if not decoder.last and not np.isfinite(made).all():
        raise RunError("hidden states that are not finite came of a run")
    return made
