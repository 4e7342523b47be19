"""From a manifest and a file to a decoder's stage that runs. On a device, without `onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shards.errors import ArtifactError, DeviceError, ModelError, RunError
from shards.language.decoder import Decoder
from shards.language.kv_growing import DeviceKv, GrowingKv
from shards.language.kv_stage import KvStage, SharedKv, StageForm, check_kv_fits
from shards.manifest import Manifest, verify, verify_file
from shards.runtimes.chain import DeviceChange, Tell
from shards.runtimes.device import AUTO, CPU, MEMORIES, PROVIDERS, TENSORRT, DeviceChoice
from shards.runtimes.load import Fetch, devices_of, tolerance_of
from shards.runtimes.memory import check_fits, free_bytes, need_of
from shards.runtimes.ort import trim_memory
from shards.runtimes.synthetic import deviation

ON_CPU = DeviceChoice()
_CHECKED = 8  # tokens of the chunk that a device is checked with


def decoder_of(manifest: Manifest) -> Decoder:
    """The manifest's language model. Raises ModelError for another kind of model."""
    decoder = Decoder.of(manifest)
    if decoder is None:
        raise ModelError(
            f"{manifest.model}@{manifest.version} is no language model: ask for it with `infer`"
        )
    return decoder


def load_decoder_stage(
    manifest: Manifest,
    stage: int,
    fetch: Fetch,
    *,
    slots: int,
    context: int | None = None,
    threads: int = 1,
    placement: DeviceChoice = ON_CPU,
    tell: Tell | None = None,
) -> KvStage:
    """Fetch, verify and load one stage, with slots for so many sessions of `context` tokens.

    `context` is the model's own by default, and never above it. The CPU computes the bits that the
    split was proved with. `placement` may name another device, and `auto` does not; where that has
    a memory that ONNX Runtime names, the keys and values lie there. A stage on a device is compared
    with itself on the CPU before it is given; where it fails, or is further off than the version's
    tolerance, the CPU computes, and `tell` hears why. Blocking: call it in a thread. Raises
    ManifestError (no such stage), ArtifactError (missing or changed file), ModelError (no language
    model, or ONNX Runtime refuses it), DeviceError (a device that is not there, or keeps no
    sessions), and DoesNotFit (weights, or keys and values, need more memory than is free; nothing
    was loaded then).
    """
    decoder, shard = decoder_of(manifest), manifest.shard(stage)
    if placement.device == TENSORRT:
        raise DeviceError(
            "the stages of a language model keep sessions, which TensorRT's own runtime cannot: "
            "--device tensorrt-ort takes TensorRT by ONNX Runtime, --device cuda does without"
        )
    devices = devices_of(placement)
    if placement.device == AUTO and devices != (CPU,):
        devices = (CPU,)  # until a language model was seen to run on such a device
        if tell is not None:
            tell(DeviceChange(CPU, "auto leaves language models there: --device cuda takes CUDA"))
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
    settings = {"slots": slots, "context": context, "threads": threads}
    loaded: KvStage | None = None
    for device in (each for each in devices if each != CPU):
        try:
            loaded = _on_device(model, form, device, placement, settings, tolerance_of(manifest))
            break
        except (ModelError, RunError) as error:
            if tell is not None:
                tell(DeviceChange(CPU, str(error)))
    if loaded is None:
        loaded = kind(model, form, **settings)
    trim_memory()
    return loaded


def _on_device(
    model: bytes | Path,
    form: StageForm,
    device: str,
    placement: DeviceChoice,
    settings: dict[str, Any],
    tolerance: float,
) -> KvStage:
    """The stage on a device, compared with the CPU. Raises ModelError, RunError."""
    options = dict(placement.options) if device == placement.device else {}
    providers = [(PROVIDERS[device], options), PROVIDERS[CPU]]
    memory = MEMORIES.get(device, "cpu")
    made = DeviceKv(model, form, device=device, memory=memory, providers=providers, **settings)
    right = GrowingKv(model, form, **settings | {"slots": 1})
    try:
        check_alike(made, right, tolerance)
    except BaseException:
        made.close()
        raise
    finally:
        right.close()
    return made


def check_alike(made: KvStage, right: KvStage, tolerance: float) -> None:
    """Raise ModelError unless both give the same answers for a chunk and for a token behind it, up
    to `tolerance`, relative to the largest. Both forget the session in their first slot."""
    random = np.random.default_rng(0)
    form, held = made.form, 0
    for count in (_CHECKED, 1):
        rows: np.ndarray
        if form.first:
            rows = random.integers(0, form.vocabulary, (1, count))
        else:
            rows = random.standard_normal((1, count, form.width), np.float32)
        count = min(count, made.context - held)
        if not count:
            return
        place = np.array([held])
        apart = deviation(right.run(rows[:, :count], 0, place), made.run(rows[:, :count], 0, place))
        if not apart <= tolerance:
            raise ModelError(
                f"{made.device} computes other values than the CPU: {apart:.2g} off, "
                f"more than {tolerance:.0g}"
            )
        held += count


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
