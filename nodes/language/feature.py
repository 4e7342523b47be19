"""Language models: sessions of tokens at the stages of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Feature, Source
from nodes.language.settings import GenerationOptions

if TYPE_CHECKING:
    from shards.manifest import Manifest


def _source(path: str) -> Source | None:
    from nodes.language.commands.models import source_of

    return source_of(path)


def _describes(manifest: Manifest) -> list[str]:
    from nodes.language.commands.models import lines_of

    return lines_of(manifest)


FEATURE = Feature("language", settings=[GenerationOptions], source=_source, describes=_describes)
