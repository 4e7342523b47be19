"""A JSON schema as a matcher of `llguidance`; and, as a program, a trial of a schema in a process
of its own: what takes too much time or memory there ends that process, and is refused.

It is run by its path, isolated, and so imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CPU_SECONDS, MEMORY = 1, 1 << 30  # of a trial
STEPS = 64  # tokens of a trial
FINE = "fine"


def matcher_of(schema: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Of JSON on one line, separated as Python's `json` does. Raises ValueError."""
    from llguidance import LLMatcher, LLParserLimits

    document = json.loads(schema)
    if not isinstance(document, dict):
        raise ValueError("an object of JSON")
    document.pop("x-guidance", None)  # the library's options are not the client's
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps(document),
        overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    )
    limits = LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=10_000,  # of 1 to 2 KB each
        max_grammar_size=50_000,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def bits_of(mask: bytes) -> list[int]:
    """The numbers of the bits that are set."""
    return [at for at in range(8 * len(mask)) if mask[at >> 3] >> (at & 7) & 1]


def tried(schema: str) -> str:
    """FINE, or what is wrong with a schema: it is compiled, and a text that it allows is begun."""
    from llguidance import LLTokenizer

    try:
        matcher = matcher_of(schema, LLTokenizer("byte"))
        for step in range(STEPS):
            allowed = bits_of(matcher.compute_bitmask())
            if matcher.is_stopped():
                break
            matcher.consume_token(allowed[(step * 7919) % len(allowed)])
        return matcher.get_error() or FINE
    except (ValueError, RecursionError) as error:
        return str(error) or type(error).__name__


def main() -> None:
    """Standard input has a schema; standard output gets what `tried` says."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = tried(sys.stdin.buffer.read().decode())
    sys.stdout.buffer.write(said.encode(errors="replace"))


if __name__ == "__main__":
    main()
