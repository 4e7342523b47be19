"""The nodes of a mesh as one node's gossip knows them. It asks nobody: `Membership` does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from swarm.fleet.advertised import StagePeer, serving, valid
from swarm.gossip import LAN, Gossip, GossipConfig, PeerView
from swarm.gossip.wire import MeshKey
from swarm.model import ModelInfo


class Peers:
    """node: this node's id. mesh_key: 16 to 64 bytes shared by all nodes; with it, messages that
    are not marked with it are refused and counted. Several keys: see `Gossip`. clock: seconds,
    monotonic.
    """

    def __init__(
        self,
        node: str,
        config: GossipConfig = LAN,
        mesh_key: MeshKey = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = node
        self.config = config
        self.clock = clock
        incarnation = time.time_ns() // 1_000_000
        self.gossip = Gossip(node, incarnation, random.Random(), config, mesh_key, valid)
        self._view: Mapping[str, PeerView] | None = None

    def view(self) -> Mapping[str, PeerView]:
        """All known nodes, this one included; computed once a round."""
        if self._view is None:
            self._view = self.gossip.view(self.clock())
        return self._view

    def changed(self) -> None:
        """Gossip has news: the next `view` is computed anew."""
        self._view = None

    def alive(self) -> list[PeerView]:
        """The nodes that are neither dead nor gone nor suspected."""
        return [peer for peer in self.view().values() if peer.state == "alive"]

    def serving(self, info: ModelInfo, stage: int) -> list[StagePeer]:
        """The living nodes that serve a stage, this one included."""
        return serving(self.alive(), info.model, info.version, stage)
