"""Prove a split on examples before it is served: exactness, shapes, times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards.errors import ModelError
from shards.graph.layer_range import LayerRange
from shards.graph.tensor_types import TensorType
from shards.runtimes.ort import make_session
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.synthetic import random_feeds, worst_deviation
from shards.specs import TensorSpec
from shards.split.profile import Tensors, run_chain

# Sizes to try for dynamic dimensions other than the batch: those of sequences, then of pictures.
_DYNAMIC_SIZES = (16, 64, 128, 224, 320, 8, 1)


@dataclass
class CheckReport:
    """The outcome of running the examples.

    `times_ms` is the median time of each part, 0 where nothing ran. `shapes` has the shape of every
    tensor that crosses a cut, at batch 1.
    """

    times_ms: list[float]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_example(
    whole: bytes | None, inputs: Sequence[TensorType], given: Tensors | None
) -> tuple[dict[str, np.ndarray] | None, str]:
    """Inputs that the model runs on, and an empty reason; or None and the reason.

    Without a `given` example the values are seeded (see `random_feeds`), and a model with dynamic
    dimensions is tried with several sizes, and one that does not tell how many axes an input has
    with several numbers of axes. A model that is too large to be loaded whole (`None`)
    gets the first size untried. Raises ModelError when a `given` example fails, or is empty.
    """
    # One of several inputs may be empty, such as a state that begins without entries.
    if given and not any(array.size for array in given.values()):
        raise ModelError("the example is empty, and proves nothing: give one of one row")
    specs = [kind.spec() for kind in inputs]
    if whole is None:
        return dict(given) if given else next(_tried(specs)), ""
    session = make_session(whole, level="basic")
    reason = ""
    for feeds in [dict(given)] if given else _tried(specs):
        try:
            session.run(None, feeds)
        except Exception as error:  # pybind raises a dozen unrelated types here
            reason = reason_of(error)
        else:
            return feeds, ""
    if given:
        raise ModelError(f"the model does not run on the example: {reason}")
    return None, reason


def _tried(specs: Sequence[TensorSpec]) -> Iterator[dict[str, np.ndarray]]:
    """Seeded inputs, one set for each choice of the sizes that the specifications leave open."""
    free = [spec.name for spec in specs if spec.any_rank]
    is_dynamic = bool(free) or any(-1 in spec.shape[1:] for spec in specs)
    for n in _DYNAMIC_SIZES if is_dynamic else (1,):
        # The shapes of rows, pictures, sequences, a list and one number.
        for shape in ((1, n), (1, 3, n, n), (1, n, n), (n,), ()) if free else ((),):
            yield random_feeds(specs, dict.fromkeys(free, shape), dynamic=n)


def check_split(
    whole: bytes | None,
    parts: Sequence[tuple[LayerRange, bytes | None]],
    feeds: Mapping[str, np.ndarray],
    *,
    tolerance: float,
    budget_s: float,
) -> CheckReport:
    """Compare the parts with the whole at BASIC, and time them at full optimisation.

    `feeds` are the model's inputs. Timing takes `budget_s` seconds. A model that draws random
    numbers is not compared. Raises ModelError when the parts deviate from the whole by more than
    `tolerance`.
    """
    notes: list[str] = []
    basic = run_chain(parts, [feeds], level="basic")
    if whole is not None:
        session = make_session(whole, level="basic")
        # The session of the whole lacks an output that is also a model input.
        names = [out.name for out in session.get_outputs()]
        try:
            answers = [session.run(names, dict(feeds)) for _ in range(2)]
        except Exception as error:  # pybind raises a dozen unrelated types here
            raise ModelError(f"the whole model does not run: {reason_of(error)}") from error
        del session
        runs = [dict(zip(names, answer, strict=True)) for answer in answers]
        apart = worst_deviation(runs[0], {name: basic.sent[-1][0][name] for name in names})
        if worst_deviation(*runs) > 0.0:
            notes.append("not compared with the whole: the model draws random numbers")
        elif apart > tolerance:
            raise ModelError(
                f"the shards are off by {apart:.3g} from the whole model, more than {tolerance:g}: "
                "this is a defect, please report the model; another cut may work"
            )
        elif apart > 0.0:
            notes.append(f"the shards are off by {apart:.3g} from the whole model")
    times = [0.0] * len(parts)
    if budget_s > 0:
        times = run_chain(parts, [feeds], budget_s=budget_s).times_ms
    return CheckReport(times, basic.shapes, notes)
