"""Prove a split on examples before it is served: exactness, shapes, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards.errors import ModelError
from shards.graph.layer_range import LayerRange
from shards.runtimes.ort import Model, make_session
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.synthetic import worst_deviation
from shards.specs import Example
from shards.split.profile import run_chain


@dataclass
class CheckReport:
    """The outcome of running the examples.

    `times_ms` is the median time of each part, 0 where nothing ran. `examples` has every tensor
    that enters, leaves or crosses a cut, as it was at batch 1.
    """

    times_ms: list[float]
    examples: dict[str, Example] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def check_split(
    whole: Model | None,
    parts: Sequence[tuple[LayerRange, Model | None]],
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
    return CheckReport(times, basic.examples, notes)
