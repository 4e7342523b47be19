"""JSON schemas of answers: checked at stage 1, followed at the last stage."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from shards.errors import ModelError
from shards.language.grammar import Grammars, SchemaGrammar, check_schema
from swarm.errors import InvalidArgument

SLOW, MOST_SLOW = 0.010, 8  # seconds of one look for the tokens that may follow; such looks
MOST_REFUSED = 1024  # schemas that are remembered

T = TypeVar("T")


def checked(schema: str) -> None:
    """Blocks for up to some seconds. Raises `InvalidArgument`."""
    try:
        check_schema(schema)
    except ModelError as error:
        raise InvalidArgument(f"schema: {error}") from None


class SchemaReader:
    """What the last stage reads schemas by: `SchemaReader(...)(schema)`. grammars: None where the
    library is not installed. slow: seconds of processor time. Raises `InvalidArgument`.

    All sessions wait while the tokens that one may have are looked for. So an answer for which
    that is slow `MOST_SLOW` times is ended, and its schema is refused from then on: its trial
    cannot know what it costs behind any text and with any vocabulary.
    """

    def __init__(self, grammars: Grammars | None, node: str, slow: float = SLOW) -> None:
        self._grammars, self._node, self._slow = grammars, node, slow
        self._refused: OrderedDict[str, None] = OrderedDict()

    def __call__(self, schema: str) -> TimedGrammar:
        if self._grammars is None:
            raise InvalidArgument(
                f"schema: {self._node} reads none: it needs 'swarm-mesh[grammar]'"
            )
        if schema in self._refused:
            raise _too_slow()
        try:
            return TimedGrammar(
                self._grammars.of(schema), self._slow, partial(self._refuse, schema)
            )
        except ModelError as error:
            raise InvalidArgument(f"schema: {error}") from None

    def _refuse(self, schema: str) -> None:
        self._refused[schema] = None
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)


class TimedGrammar:
    """A grammar whose errors are those of the mesh. See `swarm.language.grammar`. on_slow: it
    takes too long too often."""

    def __init__(self, grammar: SchemaGrammar, slow: float, on_slow: Callable[[], None]) -> None:
        self._grammar = grammar
        self._slow, self._on_slow = slow, on_slow
        self._times = 0

    def allowed(self, generated: Sequence[int]) -> np.ndarray:
        """See `swarm.language.grammar.Grammar`."""
        return self._timed(self._grammar.allowed, generated)

    def is_whole(self, generated: Sequence[int]) -> bool:
        """See `swarm.language.grammar.Grammar`."""
        return self._timed(self._grammar.is_whole, generated)

    def _timed(self, look: Callable[[Sequence[int]], T], generated: Sequence[int]) -> T:
        began = time.thread_time()  # on a busy machine others' work is not this schema's
        try:
            found = look(generated)
        except ModelError as error:
            raise InvalidArgument(f"schema: {error}") from None
        self._times += time.thread_time() - began > self._slow
        if self._times >= MOST_SLOW:
            self._on_slow()
            raise _too_slow()
        return found


def _too_slow() -> InvalidArgument:
    return InvalidArgument("schema: it takes too long to be followed with this model's tokens")
