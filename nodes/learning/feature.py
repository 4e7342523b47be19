"""A head that nodes train on samples of their hosts, and agree about by deltas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Feature, Part, Role, Surroundings
from nodes.learning.options import LEARNER, LearnOptions, learns
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.config import NodeConfig


def _check(config: NodeConfig) -> None:
    options = config.of(LearnOptions)
    if config.role == "gateway" and options.learn:
        raise InvalidArgument("a gateway has no model of its own to learn: leave out --learn")
    if learns(config):
        options.privacy.check_usable()


def _parts(around: Surroundings) -> list[Part]:
    connection = around.connection
    if connection.identity is None or not learns(connection.config):
        return []
    from nodes.learning.duty import Learning  # a node that does not learn needs none of it

    options = connection.config.of(LearnOptions)
    return [Learning(connection, options, connection.identity, around.versions)]


FEATURE = Feature(
    "learning",
    settings=[LearnOptions],
    check=_check,
    roles={LEARNER: Role("only learns.")},
    parts=_parts,
)
