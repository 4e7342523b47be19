"""Answers that a JSON schema allows, by `llguidance` (extra `grammar`).

A schema comes from anybody. It is tried in a process of its own first, which has a second of
processor time: the library bounds much of its work, but not all. A conjunction of twenty patterns
takes more than 20 s, and a multiple of 999983 hundreds of megabytes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import ModelError
from shards.language import schema_trial
from shards.language.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TRIAL_WITHIN = 10.0  # seconds of a trial on a busy machine
MOST_KNOWN = 256  # schemas whose trial is remembered
MOST_COMPILED = 8
_LONGEST_REASON = 300  # characters
_END = "<|end of the answer|>"
_known: OrderedDict[str, str] = OrderedDict()
_one_at_a_time = threading.Lock()


def is_installed() -> bool:
    """Whether schemas can be read here."""
    return find_spec("llguidance") is not None


def check_schema(schema: str) -> None:
    """Raises ModelError for a schema that is none, has keywords that are not known, or takes too
    long. Blocks for some 60 ms, for a known one not at all."""
    if not is_installed():
        raise ModelError("schemas need the library `llguidance`: pip install 'swarm-mesh[grammar]'")
    with _one_at_a_time:
        found = _known.get(schema)
        if found is None:
            found = _known[schema] = _trial(schema)
            if len(_known) > MOST_KNOWN:
                _known.popitem(last=False)
    if found != schema_trial.FINE:
        raise ModelError(found[:_LONGEST_REASON])


def _trial(schema: str) -> str:
    command = [sys.executable, "-I", schema_trial.__file__]
    try:
        ran = subprocess.run(
            command, input=schema.encode(), capture_output=True, timeout=TRIAL_WITHIN, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its trial took more than {TRIAL_WITHIN:g} s"
    except UnicodeEncodeError:
        return "it has half a character, which no UTF-8 writes"
    if ran.returncode:
        return "it takes too much time or memory to be followed"
    return ran.stdout.decode(errors="replace")


class Grammars:
    """Schemas over the tokens of one model. ends: ids that end an answer.

    Making it takes a second or more for a large vocabulary. Raises ModelError.
    """

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        from llguidance import LLTokenizer

        # Of several the first one is the model's own, as a rule.
        known = [end for end in ends if end < tokenizer.vocabulary]
        # The library needs a token that ends: without one of the model's it is a further id, which
        # no logits have, and a schema that allows no end but by it goes on.
        data = tokenizer.to_json() if known else tokenizer.to_json(_END)
        try:
            end = known[0] if known else tokenizer.vocabulary
            self._tokenizer: LLTokenizer = LLTokenizer(data, eos_token=end)
        except ValueError as error:
            raise ModelError(f"its tokenizer fits no schema: {error}") from None
        self._vocabulary = tokenizer.vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, schema: str) -> None:
        """Compile a schema, in a thread: `of` takes no time then. Raises ModelError."""
        with self._lock:
            if schema in self._compiled:
                self._compiled.move_to_end(schema)
                return
            try:
                made = schema_trial.matcher_of(schema, self._tokenizer)
            except (ValueError, RecursionError) as error:
                raise ModelError(str(error)[:_LONGEST_REASON]) from None
            self._compiled[schema] = made
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)

    def of(self, schema: str) -> SchemaGrammar:
        """One answer's grammar, at its beginning. Raises ModelError."""
        self.prepare(schema)
        with self._lock:
            return SchemaGrammar(self._compiled[schema].deep_copy(), self._vocabulary)


class SchemaGrammar:
    """Where an answer is in its schema: a function of its tokens. Raises ModelError where the
    schema asks for more work than it may, and for tokens that it does not allow."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._taken: list[int] = []

    def allowed(self, generated: Sequence[int]) -> np.ndarray:
        """The ids that may follow, ascending."""
        self._take(generated)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        ids = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        return ids[ids < self._vocabulary]

    def is_whole(self, generated: Sequence[int]) -> bool:
        """Whether nothing may follow any more."""
        self._take(generated)
        return bool(self._matcher.is_stopped())

    def _take(self, generated: Sequence[int]) -> None:
        """Go on, or begin anew, so that exactly these tokens have been read."""
        taken = len(self._taken)
        if list(generated[:taken]) != self._taken:
            self._matcher.reset()
            self._taken, taken = [], 0
        new: list[Any] = list(generated[taken:])
        if new:
            self._matcher.consume_tokens(new)
            self._check()
            self._taken += new

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ModelError(self._matcher.get_error()[:_LONGEST_REASON])
