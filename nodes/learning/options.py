"""The settings of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.learning.privacy import Privacy, require_accountant
from nodes.learning.samples import CAPACITY, HELD_OUT
from swarm.errors import InvalidArgument
from swarm.learning.consensus.options import LearningOptions


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """every: seconds from one round to the next. steps: of descent in a round. batch: samples of a
    step. rate: step size, 1 is the largest that is safe for the samples taught (`smooth_rate`) by
    its bound; more is usual. momentum: share of the velocity that a step keeps, 0 <= momentum < 1.
    l2: weight decay. mint_every: seconds from one weight version to the next; mint_grace: seconds
    that each further learner waits before it mints in another's place. capacity, held_out: see
    `Samples`. privacy: None trains without noise. Raises `InvalidArgument`.
    """

    every: float = 1.0
    steps: int = 4
    batch: int = 32
    rate: float = 4.0
    momentum: float = 0.0
    l2: float = 1e-4
    mint_every: float = 10.0
    mint_grace: float = 2.0
    capacity: int = CAPACITY
    held_out: float = HELD_OUT
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if not (self.every > 0 and self.mint_every > 0 and self.mint_grace > 0):
            raise InvalidArgument("a learner's rounds and weight versions come after some time")
        if not (self.steps >= 1 and self.batch >= 1 and self.rate > 0 and self.l2 >= 0):
            raise InvalidArgument("a learner makes steps of some size, with some samples")
        if not 0 <= self.momentum < 1:
            raise InvalidArgument(f"a momentum of {self.momentum}: it is from 0 to below 1")
        if self.privacy is not None:
            require_accountant()


@dataclass(frozen=True, slots=True)
class LearnConfig:
    """learner: rounds, training, privacy. exchange: of deltas with the neighbours."""

    learner: LearnOptions = field(default_factory=LearnOptions)
    exchange: LearningOptions = field(default_factory=LearningOptions)


def learn_config(settings: Mapping[str, Any]) -> LearnConfig:
    """From the settings of `swarm-node`. Raises `InvalidArgument`."""
    noise = settings["private_noise"]
    privacy = None
    if noise:
        clip, sampling = settings["private_clip"], settings["private_sampling"]
        privacy = Privacy(clip=clip, noise=noise, sampling=sampling)
    try:
        exchange = LearningOptions(
            share=settings["delta_share"],
            bytes_per_delta=settings["delta_bytes"],
            hostile=settings["hostile"],
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    learner = LearnOptions(
        every=settings["learn_every"], mint_every=settings["mint_every"], privacy=privacy
    )
    return LearnConfig(learner, exchange)
