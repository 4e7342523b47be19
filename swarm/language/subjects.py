"""Where tokens are asked for, and where the steps of sessions go."""

from __future__ import annotations

from swarm.subjects import Subjects, token


class LanguageSubjects(Subjects):
    """The subjects of language models."""

    __slots__ = ()

    def generate(self, model: str) -> str:
        """Requests for tokens of a language model."""
        return self.under("generate", model_name=model)

    def steps(self, model: str, version: str, stage: int, node: str) -> str:
        """Steps of sessions for one node of a language model's stage, stored nowhere."""
        return (
            f"{self.root}.steps.{token(model, 'model name')}.{token(version, 'version')}"
            f".{int(stage)}.{self.named(node)}"
        )
