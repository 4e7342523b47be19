"""Versions on trial: one that gets a share of a model's traffic by a plan of its own, beside those
that serve. A feature follows them (`swarm.feature.MeshFeature.trials`); without it there are none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from swarm.features import features
from swarm.ids import ulid
from swarm.link import Link
from swarm.models.registry import InForce
from swarm.routing.desired import Trial
from swarm.subjects import Subjects
from swarm.wire.messages import Result

Inputs = Mapping[str, np.ndarray]


class FollowedTrial(Protocol):
    """A trial as one process sees it. done: all traffic goes to its version. aborted: none does."""

    @property
    def plan(self) -> Trial: ...
    @property
    def done(self) -> bool: ...
    @property
    def aborted(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TriedRequest:
    """A request that is asked for while some version is on trial.

    version: to which it goes. request: its result, for whoever awaits it. until: in the loop's
    time. instead(version): asks another version, which returns None where it cannot be asked; None
    where no other one may be. copy(inputs, version, budget): asks a version by a copy, within so
    many seconds; None where no copy may be made.
    """

    model: str
    version: str
    inputs: Inputs
    request: Awaitable[Result]
    until: float
    instead: Callable[[str], Awaitable[Result | None]] | None = None
    copy: Callable[[dict[str, np.ndarray], str, float], Awaitable[Result]] | None = None


class Trials:
    """The trials that this process follows; of itself it follows none. name: of this process, as
    one that reports."""

    def __init__(self) -> None:
        self.name = ulid()

    @property
    def follows(self) -> bool:
        """Whether any version is on trial, as far as is known."""
        return False

    def of(self, model: str) -> FollowedTrial | None:
        """The trial of a model, or None."""
        return None

    def share(self, model: str) -> float:
        """Percent of the traffic for the version on trial; 0.0 without one."""
        return 0.0

    def follow(self, model: str, present: InForce | None) -> None:
        """A model's desired state was read: follow its trial, and no other one."""

    def aborted(self, subject: str, data: bytes | memoryview) -> bool:
        """A key of the registry has changed: whether that was the end of a trial, and no more."""
        return False

    def cannot_run(self, model: str, reason: str) -> None:
        """Whether this node can run the version on trial, told at each look: "", or why not."""

    async def ask(self, tried: TriedRequest) -> Result:
        """The result of a request, which may be evidence. Where the version on trial fails, the one
        that serves is asked."""
        return await tried.request

    def close(self) -> None:
        """Follow nothing any more."""


def trials_of(link: Link, subjects: Subjects, under_way: Callable[[], int]) -> Trials:
    """Those of the feature that follows trials. under_way(): requests of this process that wait
    for their answers."""
    for feature in features():
        if feature.trials is not None:
            return feature.trials(link, subjects, under_way)
    return Trials()
