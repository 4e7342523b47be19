"""What language models add to a client, of our connections and of those of nats-py: tokens. Few
clients generate, so that the work is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from swarm.language.client import AsksForTokens, GenerateOptions, Generation


class Generates:
    """What can be asked for tokens."""

    def generate(
        self: AsksForTokens,
        model: str,
        prompt: str | Sequence[int],
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Tokens of a language model, as they are chosen: `async for token in mesh.generate("llm",
        "Once")`. model: `NAME` or `NAME@VERSION`. prompt: text, or token ids. A node that dies
        costs a pause, and no token. Iterating raises the error of a failure: `InvalidArgument`,
        `ResourceExhausted` (the context does not fit, all slots are taken), `Unavailable`,
        `DeadlineExceeded`, `Internal`."""
        from swarm.language.client import generate

        return generate(self, model, prompt, options)

    def chat(
        self: AsksForTokens,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """As `generate`, for the answer to a chat: messages with `role` and `content`, which the
        model's own template makes a prompt of."""
        from swarm.language.client import generate

        return generate(self, model, messages, options)
