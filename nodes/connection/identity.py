"""Who this node is to others, and whose models it takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from nodes.config import NodeConfig
from nodes.connection.checkpoint import Checkpoint
from nodes.features import features
from swarm.errors import InvalidArgument
from swarm.ids import nobodys_user, node_id
from swarm.security.identity import Identity
from swarm.security.signed_entries import Highest, Verifier
from swarm.subjects import parts_of

log = logging.getLogger("swarm.node")


def own_id(config: NodeConfig) -> str:
    """The node's id, which rights bind to its user. Raises `InvalidArgument` for another one."""
    owner = config.link.connects_as
    if not config.node:
        return node_id(owner or nobodys_user(config.role))
    if (config.link.credentials or config.link.nkey) and parts_of(config.node)[0] != owner:
        raise InvalidArgument(
            f"--node {config.node}: these credentials are those of user {owner!r}, whose nodes are "
            f"called {owner}, or {owner}- and a word without '-', as in {owner}-2"
        )
    return config.node


def identity_of(config: NodeConfig) -> Identity | None:
    """The key pair of a node. A node with a feature that signs what it tells always has one: beside
    its checkpoint, or for the life of its process. Raises `InvalidArgument`."""
    if config.identity:
        return Identity.load_or_make(config.identity)
    if not any(feature.signs(config) for feature in features()):
        return None
    if config.state_dir:
        return Identity.load_or_make(Path(config.state_dir) / "identity")
    return Identity.make()


def verifier_of(config: NodeConfig) -> Verifier | None:
    """What decides which manifests and desired state a node takes; None takes all. With a folder
    for its state, a node's successor remembers what this one has seen."""
    if config.trusted is None:
        log.warning(
            "models are taken unsigned: whoever may write to the mesh's store decides what this "
            "node runs"
        )
        return None
    seen = Checkpoint(config.state_dir, config.mesh, f"{config.role}-seen")

    def keep(known: Mapping[str, int]) -> None:
        try:
            seen.save(dict(known))
        except OSError as error:
            log.warning("which versions were seen is not kept: %s", error)

    count = len(config.trusted.listed())
    log.info(
        "models must be signed by a key in %s, which lists %d at present", config.trusted, count
    )
    return Verifier(config.trusted, Highest(seen.load(), keep))
