"""The runtimes of a language model's version on one node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nodes.language.draft import DraftSource, DraftStages, draft_source
from nodes.language.settings import GenerationOptions
from nodes.versions.loaded import Loaded, Loading
from shards.errors import ModelError
from shards.language import grammar
from shards.language.decoder import Decoder
from shards.language.grammar import Grammars
from shards.language.kv_stage import KvStage
from shards.language.load import decoder_of, load_decoder_stage
from shards.language.texts import Texts
from swarm.model import ModelInfo

if TYPE_CHECKING:
    from nodes.versions.serving import Serving, SharedByStages

log = logging.getLogger("swarm.node")


@dataclass(kw_only=True)
class LoadedLanguage(Loaded):
    """`decoders` in the place of stages. texts: where this node reads or writes any. grammars:
    where it chooses tokens and has the library for schemas. draft: where it has stage 1 and a model
    that guesses."""

    decoders: dict[int, KvStage]
    language: Decoder
    texts: Texts | None
    grammars: Grammars | None
    draft: DraftStages | None

    def serving(self, shared: SharedByStages) -> Serving:
        from nodes.language.serving import GenerationServing

        return GenerationServing(shared, self)

    def close(self) -> None:
        super().close()
        for decoder in self.decoders.values():
            decoder.close()
        if self.draft is not None:
            self.draft.close()


async def prepare(loading: Loading) -> Callable[[], LoadedLanguage]:
    """What loads a version, in a thread. Raises as `draft_source`."""
    guesses = 1 in loading.stages and loading.config.of(GenerationOptions).draft_model
    registry, drafts = loading.mesh.registry, None
    if guesses:
        drafts = await draft_source(registry, loading.artifacts, loading.config, loading.manifest)
    return partial(_load, loading, drafts)


def _load(loading: Loading, drafts: DraftSource | None) -> LoadedLanguage:
    language, info, wanted = decoder_of(loading.manifest), loading.info, loading.stages
    decoders = {number: _decoder(loading, number) for number in wanted}
    texts = Texts.load(loading.manifest, loading.fetch) if {1, info.last} & set(wanted) else None
    grammars = None
    if texts is not None and info.last in wanted:
        grammars = _grammars_of(texts, language, info)
    return LoadedLanguage(
        info,
        {},
        None,
        None,
        time.monotonic() - loading.started,
        decoders=decoders,
        language=language,
        texts=texts,
        grammars=grammars,
        draft=None if drafts is None else drafts.load(loading.config),
    )


def _decoder(loading: Loading, number: int) -> KvStage:
    config = loading.config
    options = config.of(GenerationOptions)
    return load_decoder_stage(
        loading.manifest,
        number,
        loading.fetch,
        slots=options.slots,
        context=options.session_tokens,
        threads=config.threads,
        placement=config.placement,
        tell=partial(loading.changed, number),
    )


def _grammars_of(texts: Texts, language: Decoder, info: ModelInfo) -> Grammars | None:
    """What reads schemas of answers; None without the library, and for a tokenizer that it does not
    know."""
    if not grammar.is_installed():
        return None
    try:
        return Grammars(texts.tokenizer, language.end_tokens)
    except ModelError as error:
        log.warning("%s@%s answers by no schema: %s", info.model, info.version, error)
        return None
