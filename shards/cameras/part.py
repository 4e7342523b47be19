"""The manifest's part `task`: what a model is for. `shards.cameras.task.Task.of` reads it, so that
a node serves a model with a task that only newer versions know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shards.errors import ManifestError
from shards.parts import ManifestPart

if TYPE_CHECKING:
    from shards.schema import Shard


class TaskPart(ManifestPart):
    """See the module."""

    field = "task"

    def check(self, raw: object, shards: Sequence[Shard]) -> None:
        if not isinstance(raw, dict):
            raise ManifestError(f"manifest field 'task' must be an object, is {raw!r:.80}")


PART = TaskPart()
