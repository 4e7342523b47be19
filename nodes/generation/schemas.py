"""JSON schemas of answers: checked at stage 1, followed at the last stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from shards.decoder.grammar import Grammar, Grammars, check_schema
from shards.errors import ModelError
from swarm.errors import InvalidArgument


def checked(schema: str) -> None:
    """Blocks for up to some seconds. Raises `InvalidArgument`."""
    try:
        check_schema(schema)
    except ModelError as error:
        raise InvalidArgument(f"schema: {error}") from None


def reader(grammars: Grammars | None, node: str) -> partial[Followed]:
    """What the last stage reads schemas by. grammars: None where the library is not installed."""
    return partial(_followed, grammars, node)


def _followed(grammars: Grammars | None, node: str, schema: str) -> Followed:
    if grammars is None:
        raise InvalidArgument(f"schema: {node} reads none: it needs 'swarm-mesh[grammar]'")
    try:
        return Followed(grammars.of(schema))
    except ModelError as error:
        raise InvalidArgument(f"schema: {error}") from None


class Followed:
    """A grammar whose errors are those of the mesh. See `swarm.generation.grammar`."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def allowed(self, generated: Sequence[int]) -> np.ndarray:
        """See `swarm.generation.grammar.Grammar`."""
        try:
            return self._grammar.allowed(generated)
        except ModelError as error:
            raise InvalidArgument(f"schema: {error}") from None

    def is_whole(self, generated: Sequence[int]) -> bool:
        """See `swarm.generation.grammar.Grammar`."""
        try:
            return self._grammar.is_whole(generated)
        except ModelError as error:
            raise InvalidArgument(f"schema: {error}") from None
