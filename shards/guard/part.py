"""The manifest's part `guard`: which tensors of stage 1 are looked at, and how often that is wrong.

"guard": {"views": [{"tensor", "way", "rows", "channels", "size"}], "false_alarms": 0.01,
          "samples": 1257, "refuse": false, "files": [{"file", "sha256", "bytes"}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shards.errors import ManifestError
from shards.parts import ManifestPart

if TYPE_CHECKING:
    from shards.schema import Shard


class GuardPart(ManifestPart):
    """See the module."""

    field = "guard"

    def check(self, raw: object, shards: Sequence[Shard]) -> None:
        from shards.guard.told import ToldGuard

        told = ToldGuard.of(raw)
        first = next((shard for shard in shards if shard.stage == 1), None)
        names = set() if first is None else {each.name for each in (*first.receives, *first.sends)}
        lacks = sorted({view.tensor for view in told.views} - names)
        if lacks:
            raise ManifestError(f"the guard looks at {lacks[0]!r}, which is no tensor of stage 1")


PART = GuardPart()
