"""A head that nodes train on samples of their hosts, and agree about by deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Commands, Feature, NodeRole, Part, Surroundings, Tensors
from nodes.learning.options import LEARNER, LearnOptions, learns
from swarm.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from nodes.config import NodeConfig
    from swarm.link.kept_stream import KeptStream
    from swarm.mesh import Mesh
    from swarm.model import ModelInfo


def _check(config: NodeConfig) -> None:
    options = config.of(LearnOptions)
    if config.role == "gateway" and options.learn:
        raise InvalidArgument("a gateway has no model of its own to learn: leave out --learn")
    if learns(config):
        options.privacy.check_usable()


def _parts(around: Surroundings) -> list[Part]:
    from nodes.learning.following import WeightFollower
    from swarm.learning.weights import Weights
    from swarm.security.trusted_keys import AllowList

    connection, mesh, versions = around.connection, around.connection.mesh, around.versions
    options, signed = connection.config.of(LearnOptions), connection.config.trusted is not None
    allowed = AllowList.read(options.teachers)
    ledgers = Weights(mesh.link, mesh.subjects, allowed=allowed, signed=signed)
    follower = WeightFollower(ledgers, versions.loader.weights.take, connection.events.tell)
    if connection.identity is None or not learns(connection.config):
        return [follower]
    from nodes.learning.duty import Learning  # a node that does not learn needs none of it

    return [follower, Learning(connection, options, connection.identity, versions)]


def _keeps(mesh: Mesh) -> list[KeptStream]:
    from nodes.versions.upkeep import OF_A_STORE, PUSH
    from swarm.learning.weights import store_config
    from swarm.link.kept_stream import KeptStream

    config, title = store_config(mesh.subjects), "the store of weight versions"
    probe = config["subjects"][0].replace(">", "probe")
    return [KeptStream(mesh.link, title, config, PUSH, fixed=OF_A_STORE, probe=probe)]


async def _tensors_of(mesh: Mesh, info: ModelInfo, n: int) -> Tensors:
    from swarm.learning.weights import Weights

    weights = Weights(mesh.link, mesh.subjects)
    ledger = (await weights.read(info.model, info.version)).document
    if ledger is None:
        raise NotFound(f"weight version {n} of {info.model}@{info.version} is not kept")
    return await weights.tensors(info.model, info.version, ledger.record(n))


COMMANDS: Commands = {
    "Models": {"teach": "nodes.learning.commands.teach:teach"},
    "Choose the version that runs": {"model rollback": "nodes.learning.commands.weights:rollback"},
    "Watch and learn": {"model weights": "nodes.learning.commands.weights:weights"},
}
FEATURE = Feature(
    "learning",
    tells=["learning"],
    extras={"dp_accounting": "privacy"},
    settings=[LearnOptions],
    check=_check,
    signs=learns,
    roles={LEARNER: NodeRole("only learns.")},
    parts=_parts,
    keeps=_keeps,
    tensors_of=_tensors_of,
    commands=COMMANDS,
    options={"demo": ["nodes.learning.demo.declared:LearnStory"]},
    stories={"learn": "nodes.learning.demo.story:tell"},
)
