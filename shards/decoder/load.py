"""From a manifest and a file to a decoder's stage that runs. On a device, without `onnx`."""

from __future__ import annotations

from shards.decoder_fields import Decoder
from shards.errors import ArtifactError, ModelError
from shards.manifest import Manifest, verify, verify_file
from shards.runtimes.kv_growing import GrowingKv
from shards.runtimes.kv_stage import KvStage, SharedKv, StageForm, check_kv_fits
from shards.runtimes.load import Fetch
from shards.runtimes.memory import check_fits, free_bytes, need_of
from shards.runtimes.ort import Level, trim_memory


def decoder_of(manifest: Manifest) -> Decoder:
    """The manifest's language model. Raises ModelError for another kind of model."""
    if manifest.decoder is None:
        raise ModelError(
            f"{manifest.model}@{manifest.version} is no language model: ask for it with `infer`"
        )
    return manifest.decoder


def load_decoder_stage(
    manifest: Manifest,
    stage: int,
    fetch: Fetch,
    *,
    slots: int,
    context: int | None = None,
    threads: int = 1,
    level: Level = "basic",
) -> KvStage:
    """Fetch, verify and load one stage, with slots for so many sessions of `context` tokens.

    `context` is the model's own by default, and never above it. Blocking: call it in a thread. The
    level "basic" computes the bits that the split was proved with. Raises ManifestError (no such
    stage), ArtifactError (missing or changed file), ModelError (no language model, or ONNX Runtime
    refuses it), and DoesNotFit (weights, or keys and values, need more memory than is free; nothing
    was loaded then).
    """
    decoder, shard = decoder_of(manifest), manifest.shard(stage)
    context = min(context or decoder.context, decoder.context)
    title = f"stage {stage} of {manifest.model}@{manifest.version}"
    have = free_bytes()
    check_fits(title, shard.bytes, have)
    token_bytes = decoder.stage_bytes_per_token(stage)
    left = None if have is None else max(0, have - need_of(shard.bytes))
    check_kv_fits(title, slots, context, token_bytes, left)
    form = stage_form(manifest, stage)
    try:
        model = fetch(shard.file)
    except (KeyError, OSError) as error:
        raise ArtifactError(f"artifact {shard.file} is missing: {error}") from error
    if isinstance(model, bytes):
        verify(model, shard.sha256, shard.file)
    else:
        verify_file(model, shard.sha256, shard.file)
    kind = SharedKv if decoder.shares_buffers else GrowingKv
    loaded = kind(model, form, slots=slots, context=context, threads=threads, level=level)
    trim_memory()
    return loaded


def stage_form(manifest: Manifest, stage: int) -> StageForm:
    """The form of one stage's model. Raises ManifestError, ModelError."""
    decoder, shard = decoder_of(manifest), manifest.shard(stage)
    part = decoder.part(stage)
    return StageForm(
        first=stage == manifest.shards[0].stage,
        last=stage == manifest.shards[-1].stage,
        receives=shard.receives[0].name,
        sends=shard.sends[0].name,
        states=part.states,
        feeds=part.feeds,
        width=decoder.width,
        vocabulary=decoder.vocabulary,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        kv_datatype=decoder.kv_datatype,
        exact_batch=decoder.exact_batch,
    )
