"""The settings of a learner."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nodes.settings import check, setting, tuning
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.config import NodeConfig
    from swarm.learning.consensus.options import LearningOptions

learning = partial(setting, "learning")
LEARNER = "learner"  # the role that only learns


def learns(config: NodeConfig) -> bool:
    """Whether a node with these settings learns."""
    return config.role == LEARNER or config.of(LearnOptions).learn


@dataclass(frozen=True)
class SamplePrivacy:
    """How much a step may tell of one sample. Raises `InvalidArgument`."""

    noise: float = learning(
        0.0,
        "Noise on gradients by their clipped length (DP-SGD). 0: none.",
        least=0,
        name="private_noise",
    )
    clip: float = tuning(
        1.0, "learning: length that a sample's gradient is clipped to.", name="private_clip"
    )
    sampling: float = tuning(
        0.1, "learning: chance of each sample to be in a private step.", name="private_sampling"
    )

    delta: float = 1e-5
    """Chance with which epsilon may fail; below one by the number of samples."""

    def __post_init__(self) -> None:
        check(self)

    def check_usable(self) -> None:
        """Raises `InvalidArgument` where no node can train so. A node that does not learn may have
        these settings, too: one file serves all nodes of a host."""
        if not self.noise:
            return
        if not (self.clip > 0 and 0 < self.sampling <= 1 and 0 < self.delta < 1):
            raise InvalidArgument(
                "privacy: 0 < clip, 0 < sampling <= 1 and 0 < delta < 1 are expected"
            )
        if importlib.util.find_spec("dp_accounting") is None:
            raise InvalidArgument(
                'privacy needs the package dp-accounting: pip install "swarm-mesh[privacy]"'
            )


@dataclass(frozen=True)
class LearnOptions:
    """Rounds, training, minting and privacy of one learner. Raises `InvalidArgument`."""

    learn: bool = learning(
        False,
        "Train the model's head beside the node's other work, with the samples that `swarm teach` "
        "brings, and exchange deltas with other learners.",
    )
    teachers: str = setting(
        "trust",
        "",
        "File with the public keys whose learned weights are taken, one a line; empty: all.",
    )

    every: float = tuning(
        1.0, "learning: seconds from one round to the next.", least=0.05, name="learn_every"
    )
    mint_every: float = tuning(
        10.0, "learning: seconds from one weight version to the next.", least=0.1
    )
    delta_share: float = tuning(
        0.1, "learning: share of the weights that one delta carries.", least=0.0001, most=1
    )
    delta_bytes: int = tuning(65536, "learning: bytes that one delta may have.", least=1024)
    hostile: float = tuning(
        0.0,
        "learning: share of the neighbours that may lie; 0.25 holds one of four.",
        least=0,
        most=0.9,
    )
    steps: int = 4
    """Steps of descent in a round."""

    batch: int = 32
    """Samples of a step."""

    rate: float = 4.0
    """Step size: 1 is the largest that is safe for the samples taught by `smooth_rate`'s bound;
    more is usual."""

    momentum: float = 0.0
    """Share of the velocity that a step keeps, 0 <= momentum < 1."""

    l2: float = 1e-4
    """Weight decay."""

    mint_grace: float = 2.0
    """Seconds that each further learner waits before it mints in another's place."""

    capacity: int = 8192
    """Samples that are kept, of both sides."""

    held_out: float = 0.2
    """Share of the samples, between 0 and 1, that is never trained on."""

    inline_below: float = 0.0003
    """Seconds of one step that may be made on the event loop."""

    poll_every: float = 0.004
    """Seconds between looks whether the node is idle."""

    most_waiting: float = 5.0
    """Seconds that a busy node puts a round off; then the round is left out."""

    retry_after: float = 1.0
    """Seconds until the ledger is asked for again."""

    meet_within: float = 2.0
    """Seconds that a learner waits for neighbours before its first round."""

    epsilon_every: float = 30.0
    """Seconds between two computations of epsilon, which take some tenths of one."""

    privacy: SamplePrivacy = field(default_factory=SamplePrivacy)
    """Without noise, training is not private."""

    def __post_init__(self) -> None:
        check(self)
        if not self.mint_grace > 0:
            raise InvalidArgument("a learner's rounds and weight versions come after some time")
        if not (self.steps >= 1 and self.batch >= 1 and self.rate > 0 and self.l2 >= 0):
            raise InvalidArgument("a learner makes steps of some size, with some samples")
        if not 0 <= self.momentum < 1:
            raise InvalidArgument(f"a momentum of {self.momentum}: it is from 0 to below 1")

    @property
    def exchange(self) -> LearningOptions:
        """Of deltas with the neighbours."""
        from swarm.learning.consensus.options import LearningOptions

        return LearningOptions(
            share=self.delta_share, bytes_per_delta=self.delta_bytes, hostile=self.hostile
        )
