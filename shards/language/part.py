"""The manifest's part `decoder`, and the kind of models that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shards.parts import ModelHints, ModelKind

if TYPE_CHECKING:
    from shards.schema import Manifest, Shard
    from shards.split.plan import CutOptions


class LanguageModels(ModelKind):
    """See the module."""

    field = "decoder"
    about = "a language model"
    asked = "its stages keep sessions, and are asked to generate (`swarm generate`), not to infer"

    def check(self, raw: object, shards: Sequence[Shard]) -> None:
        from shards.language.decoder import check_stages, decoder_from_dict

        check_stages(decoder_from_dict(raw), [shard.stage for shard in shards])

    def stage_ends(self, manifest: Manifest) -> list[int]:
        from shards.language.decoder import decoder_from_dict

        return [part.layers[1] for part in decoder_from_dict(manifest.parts[self.field]).stages]

    def has(self, model: Any) -> bool:
        from shards.language.split.graph import is_decoder

        return is_decoder(model)

    def split(
        self,
        model: Any,
        digest: str,
        *,
        name: str,
        version: str,
        created: str,
        options: CutOptions,
        hints: ModelHints | None,
    ) -> tuple[Manifest, Mapping[str, bytes], tuple[str, ...]]:
        from shards.language.decoder import LanguageHints
        from shards.language.split.split import split_decoder

        told = hints if isinstance(hints, LanguageHints) else LanguageHints()
        return split_decoder(
            model,
            digest,
            name=name,
            version=version,
            created=created,
            options=options,
            hints=told,
        )


PART = LanguageModels()
