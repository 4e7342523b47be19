"""What a model answers, how far that is from another model's answer, and how long it takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.errors import ModelError
from shards.runtimes.ort import make_session
from shards.runtimes.ort_errors import reason_of
from shards.samples import Samples

Answers = Mapping[str, np.ndarray]
_FEWEST_RUNS = 5


@dataclass(frozen=True)
class OutputComparison:
    """`distance`: root of the mean square of the difference, relative to the right answer's, of
    the output that is worst. `accuracy`: share of samples whose largest value of the first output
    stands at the label's place; None without labels. `drop`: what the accuracy lost; without
    labels, the distance."""

    distance: float
    accuracy: float | None
    drop: float


def answers(
    model: bytes, samples: Samples, done: Callable[[int], None] = lambda n: None
) -> Answers:
    """Each output for all samples, one after the other along a new first axis.

    Raises ModelError where the model does not run.
    """
    session = make_session(model)
    names = [out.name for out in session.get_outputs()]
    rows: list[list[np.ndarray]] = []
    for feed in samples:
        try:
            rows.append(session.run(names, feed))
        except Exception as error:  # pybind raises a dozen unrelated types here
            raise ModelError(
                f"the model does not run on the samples: {reason_of(error)}"
            ) from error
        done(1)
    try:
        return {
            name: np.stack(column)
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
    except ValueError as error:
        raise ModelError(f"outputs change their shape with the sample: {error}") from error


def judge(right: Answers, got: Answers, labels: np.ndarray | None) -> OutputComparison:
    """`got` beside the `right` answers of the model in floating point."""
    distance = max((_distance(right[name], got[name]) for name in right), default=0.0)
    if labels is None:
        return OutputComparison(distance, None, distance)
    accuracy = accuracy_of(got, labels)
    return OutputComparison(distance, accuracy, accuracy_of(right, labels) - accuracy)


def accuracy_of(got: Answers, labels: np.ndarray) -> float:
    """The share of samples whose first output is largest at the label's place."""
    first = next(iter(got.values()))
    scores = first.reshape(len(labels), -1)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]:
        raise ModelError(
            f"labels reach from {labels.min()} to {labels.max()}, but the first output has "
            f"{scores.shape[1]} values: leave the labels out to judge by the outputs' distance"
        )
    return float((scores.argmax(axis=1) == labels).mean())


def _distance(right: np.ndarray, got: np.ndarray) -> float:
    if right.shape != got.shape or not np.isfinite(got.astype(np.float64)).all():
        return float("inf")
    wide = right.astype(np.float64)
    scale = float(np.sqrt(np.mean(wide**2))) or 1.0
    return float(np.sqrt(np.mean((wide - got.astype(np.float64)) ** 2))) / scale


def times_by_turns(models: Sequence[bytes], feed: Answers, budget_s: float) -> list[float]:
    """Median milliseconds of a run of each model at one thread, measured by turns.

    The first two turns warm up. At least five more follow, and further ones until `budget_s`
    seconds are spent.
    """
    sessions: list[Any] = [make_session(model) for model in models]
    taken: list[list[float]] = [[] for _ in models]
    until = time.perf_counter() + budget_s
    turn = 0
    while turn < _FEWEST_RUNS + 2 or time.perf_counter() < until:
        for session, times in zip(sessions, taken, strict=True):
            begin = time.perf_counter()
            session.run(None, dict(feed))
            if turn >= 2:
                times.append((time.perf_counter() - begin) * 1000)
        turn += 1
    return [statistics.median(times) for times in taken]
