"""The error of a composition."""

from __future__ import annotations

from shards.errors import ModelError


class CompositionError(ModelError):
    """A composition cannot be as it is declared. part: where it is wrong, "" for the whole."""

    def __init__(self, part: str, why: str) -> None:
        super().__init__(f"part {part!r}: {why}" if part else why)
        self.part = part
