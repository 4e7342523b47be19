"""Events about servers whose clocks were set, for people. A step disturbs everything that
compares times of that server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from swarm.clock import ClockStep
from swarm.fleet.advertised import StagePeer
from swarm.model import ModelInfo

log = logging.getLogger("swarm.node")

KIND = "clock-stepped"
# Seconds after an event about a server in which its other streams tell of the same, and by which
# they may have measured it otherwise.
QUIET, ALIKE = 5.0, 0.1


class ClockNews:
    """A node sees a step at each of its lanes' streams, and so do others: of the nodes of a stage,
    the first one tells.

    peers(info, stage): those that serve the stage. tell: publishes an event.
    """

    def __init__(
        self,
        node: str,
        peers: Callable[[ModelInfo, int], Iterable[StagePeer]],
        tell: Callable[[str, dict[str, object]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._peers = peers
        self._tell = tell
        self._clock = clock
        self._told: dict[str, tuple[float, float]] = {}  # when, and of how many seconds, by server

    def stepped(self, info: ModelInfo, stage: int, step: ClockStep) -> None:
        """The clock of the server that leads the stage's stream was set."""
        now = self._clock()
        told_at, of = self._told.get(step.server, (-QUIET, 0.0))
        if now - told_at < QUIET and abs(step.seconds - of) < ALIKE:
            return
        self._told[step.server] = now, step.seconds
        log.warning("%s: ages of messages there are measured anew", step.text)
        first = min(self._peers(info, stage), key=_rank, default=None)
        if first is None or first.node == self._node:
            detail = {"server": step.server, "seconds": round(step.seconds, 3), "detail": step.text}
            self._tell(KIND, detail)


def _rank(peer: StagePeer) -> tuple[int, str]:
    return peer.priority, peer.node
