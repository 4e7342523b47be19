"""The draft model of a language model's node: found in the mesh's store, and checked."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.config import NodeConfig
from nodes.language.settings import GenerationOptions
from nodes.versions.artifacts import NodeArtifacts
from shards.errors import ModelError
from shards.language.decoder import Decoder
from shards.language.kv_stage import KvStage
from shards.language.load import decoder_of, load_decoder_stage
from shards.language.texts import TOKENIZER
from shards.manifest import Manifest
from shards.runtimes.load import Fetch
from swarm.models.registry import Registry


@dataclass(frozen=True)
class DraftStages:
    """All stages of a version that guesses. vocabulary: ids below it are known to both models."""

    stages: tuple[KvStage, ...]
    vocabulary: int

    def close(self) -> None:
        for stage in self.stages:
            stage.close()


@dataclass(frozen=True)
class DraftSource:
    """A version that may guess for another one."""

    manifest: Manifest
    fetch: Fetch
    vocabulary: int

    def load(self, config: NodeConfig) -> DraftStages:
        """With one slot: nothing is guessed beside other sessions. Raises as `load_decoder_stage`.
        Blocking: call it in a thread."""
        stages: list[KvStage] = []
        try:
            for shard in self.manifest.shards:
                stage = load_decoder_stage(
                    self.manifest,
                    shard.stage,
                    self.fetch,
                    slots=1,
                    context=config.of(GenerationOptions).session_tokens,
                    threads=config.threads,
                    placement=config.placement,
                )
                stages.append(stage)
        except BaseException:
            DraftStages(tuple(stages), 0).close()
            raise
        return DraftStages(tuple(stages), self.vocabulary)


async def draft_source(
    registry: Registry, artifacts: NodeArtifacts, config: NodeConfig, serves: Manifest
) -> DraftSource:
    """The version that `--draft-model` names, for one that this node serves. Raises `NotFound`
    while it is not in the store, ModelError where it is no language model or has other tokens."""
    model, _, version = config.of(GenerationOptions).draft_model.partition("@")
    version = version or await registry.serving(model)
    manifest = Manifest.from_json(await registry.manifest(model, version))
    small, large = decoder_of(manifest), decoder_of(serves)
    if (mine := _tokenizer(small)) != _tokenizer(large):
        other = "another tokenizer" if mine else "no tokenizer"
        raise _other_tokens(manifest, serves, other)
    if not mine and small.vocabulary != large.vocabulary:
        sizes = f"{small.vocabulary} token ids, and not {large.vocabulary}"
        raise _other_tokens(manifest, serves, sizes)
    vocabulary = min(small.vocabulary, large.vocabulary)
    return DraftSource(manifest, artifacts.fetcher(manifest), vocabulary)


def _tokenizer(decoder: Decoder) -> str:
    """The hash of its file; "" where a version takes and gives ids alone."""
    return next((text.sha256 for text in decoder.files if text.file == TOKENIZER), "")


def _other_tokens(manifest: Manifest, serves: Manifest, why: str) -> ModelError:
    return ModelError(
        f"{manifest.model}@{manifest.version} cannot guess for {serves.model}@{serves.version}: "
        f"it has {why}"
    )
