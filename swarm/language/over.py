"""What language models add to a mesh that is asked through a connection of nats-py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from swarm.asking import OverNats

if TYPE_CHECKING:
    from swarm.language.client import GenerateOptions, Generation


class GeneratesOver(OverNats):
    """It can be asked for tokens."""

    def generate(
        self, model: str, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]
    ) -> Generation:
        """As `swarm.Mesh.generate`."""
        from swarm.language.client import generate

        return generate(self.link, self.subjects, model, prompt, options, self.agent)

    def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """As `swarm.Mesh.chat`."""
        from swarm.language.client import generate

        return generate(self.link, self.subjects, model, messages, options, self.agent)
