"""A hostile member of the learning demo: it has a valid key, and sends what does harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

import swarm
from nodes.learning.frozen import FrozenModel
from nodes.learning.head import Parameters
from nodes.learning.training import Training, change
from swarm.errors import SwarmError
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.gossip import LOCAL
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.exchange import DeltaExchange
from swarm.learning.weights import Weights
from swarm.security.attestation import GOSSIP_KEY, attest
from swarm.security.identity import Identity

NOISE, FLIP = "noise", "flip"
STRENGTH = 5.0  # times the length of an honest update
HONEST_ROUNDS = 8  # with which it earns its place first


async def attack(
    kind: str,
    mesh: swarm.Mesh,
    identity: Identity,
    frozen: FrozenModel,
    training: Training,
    *,
    node: str,
    every: float,
    peers: list[str],
    on_begin: Callable[[], None],
) -> None:
    """Join the mesh as a learner and attack it, until cancelled.

    kind: NOISE sends random updates, FLIP moves against what it has learned. training: on samples
    of its own. every: seconds between rounds. peers: nodes to gossip with first. on_begin: called
    before the first hostile update.
    """
    info = frozen.info
    members = Membership(mesh.link, mesh.subjects, Peers(node, LOCAL))
    members.set(GOSSIP_KEY, attest(identity, mesh.subjects.mesh, node))
    for peer in peers:
        members.gossip.add_peer(peer)
    start, epoch = await _present(mesh, frozen)
    exchange = DeltaExchange(
        mesh.link,
        mesh.subjects,
        members,
        identity,
        info.model,
        info.version,
        bytes.fromhex(frozen.model_id),
        start,
        epoch=epoch,
        options=LearningOptions(),
    )
    rng = np.random.default_rng(13)

    async def rounds() -> None:
        number = 0
        while True:
            await asyncio.sleep(every)
            if not exchange.followed:
                continue  # not one of the neighbourhood yet
            exchange.mix()
            own = exchange.parameters
            *_, after = training.round(own)
            update = change(own, after)
            if number == HONEST_ROUNDS:
                on_begin()
            if number >= HONEST_ROUNDS:
                update = hostile_update(kind, update, rng)
            number += 1
            exchange.step(update)

    async with asyncio.TaskGroup() as group:
        group.create_task(members.run())
        group.create_task(exchange.run())
        group.create_task(rounds())


async def _present(mesh: swarm.Mesh, frozen: FrozenModel) -> tuple[Parameters, int]:
    info = frozen.info
    weights = Weights(mesh.link, mesh.subjects)
    try:
        ledger = (await weights.read(info.model, info.version)).document
        if ledger is None or ledger.present is None:
            return frozen.shipped, 0
        tensors = await weights.tensors(info.model, info.version, ledger.present)
        return frozen.learned(tensors), ledger.epoch
    except SwarmError:
        return frozen.shipped, 0


def hostile_update(kind: str, update: Parameters, rng: np.random.Generator) -> Parameters:
    """What an attacker moves by in place of an honest update."""
    if kind == FLIP:
        return {name: np.float32(-STRENGTH) * value for name, value in update.items()}
    length = np.sqrt(sum(float(np.square(value).sum()) for value in update.values()))
    size = sum(value.size for value in update.values())
    deviation = STRENGTH * max(length, 1e-3) / np.sqrt(size)
    return {
        name: rng.normal(0, deviation, value.shape).astype(np.float32)
        for name, value in update.items()
    }
