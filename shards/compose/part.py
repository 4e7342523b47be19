"""The manifest's part `composition`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shards.errors import ManifestError
from shards.parts import ManifestPart

if TYPE_CHECKING:
    from shards.schema import Shard

FILE = "composition.json"  # the only artifact of a composition's version


class Compositions(ManifestPart):
    """See the module."""

    field = "composition"

    def check(self, raw: object, shards: Sequence[Shard]) -> None:
        if not isinstance(raw, dict) or not isinstance(raw.get("models"), dict):
            raise ManifestError("manifest field 'composition' says which models it asks")
        if [(shard.stage, shard.file) for shard in shards] != [(1, FILE)]:
            raise ManifestError(f"a composition has one stage, whose file is {FILE}")


PART = Compositions()
