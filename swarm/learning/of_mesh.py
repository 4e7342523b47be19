"""What learning adds to a client: it teaches the learner of its host. Few clients have labels, so
that the work is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from swarm.client import Client

if TYPE_CHECKING:
    from swarm.learning.teaching import Taught

TEACH_TIMEOUT = 60.0  # seconds


class Teaches(Client):
    """A client that can give labelled samples."""

    async def teach(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        labels: np.ndarray,
        *,
        node: str = "",
        timeout: float = TEACH_TIMEOUT,
        only_test: bool = False,
    ) -> Taught:
        """Give labelled samples to the learner of `model` (`NAME` or `NAME@VERSION`) on this host.

        They go by a Unix socket of this user, never to a server. inputs: arrays as for `infer`,
        whose axis 0 counts the samples. labels: whole numbers [n], one for each sample, from 0 on.
        node: the learner's id, needed where several run on this host. timeout: seconds. only_test:
        measure the learner's accuracy on these samples, and let it keep none.

        Raises `NotFound` where no learner runs here; `InvalidArgument` for samples that cannot be
        learned, of which none is kept then; `ResourceExhausted`, `Unavailable`,
        `DeadlineExceeded`.
        """
        from swarm.learning.teaching import teach

        name, _, version = model.partition("@")
        return await teach(
            self.subjects.mesh,
            name,
            version,
            {key: np.asarray(value) for key, value in inputs.items()},
            np.asarray(labels),
            node=node,
            timeout=timeout,
            only_test=only_test,
        )
