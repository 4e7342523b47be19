"""Stages of a decoder in one process, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from zoo.language.decoder_graph import DecoderShape, Form, decoder

from shards.language.kv_stage import KvStage
from shards.language.load import load_decoder_stage
from shards.split.split import SplitResult, split


@cache
def tiny(form: Form = "genai", bits: int = 32, stages: int = 3, seed: int = 0) -> SplitResult:
    """A random decoder of five layers in `stages` stages."""
    shape = DecoderShape(layers=5, bits=4 if bits == 4 else 32)
    model = decoder(shape, form=form, seed=seed)
    return split(model, name="tiny", stages=stages, profile=False)


def stages_of(result: SplitResult, slots: int = 8, context: int | None = None) -> list[KvStage]:
    """All stages of a split, loaded as a device does."""
    return [
        load_decoder_stage(
            result.manifest, shard.stage, result.files.__getitem__, slots=slots, context=context
        )
        for shard in result.manifest.shards
    ]


def run(stages: Sequence[KvStage], tokens: Sequence[int], slot: int, held: int) -> np.ndarray:
    """The logits behind a chunk of one session: [vocabulary]."""
    rows = np.array([tokens], np.int64)
    for stage in stages:
        rows = stage.run(rows, slot, np.array([held]))
    return rows[0]


def turn(stages: Sequence[KvStage], tokens: Sequence[int], held: Sequence[int]) -> np.ndarray:
    """One token of each of the sessions in slots 0, 1, …: logits [b, vocabulary]."""
    rows = np.array(tokens, np.int64)[:, None]
    for stage in stages:
        rows = stage.run(rows, 0, np.array(held))
    return rows


def greedy(
    stages: Sequence[KvStage], prompt: Sequence[int], count: int, slot: int = 0
) -> tuple[list[int], np.ndarray]:
    """The next tokens by the highest logit, and the logits of each: [count, vocabulary]."""
    logits = [run(stages, prompt, slot, 0)]
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        logits.append(run(stages, tokens[-1:], slot, len(prompt) + len(tokens) - 1))
        tokens.append(int(logits[-1].argmax()))
    return tokens, np.stack(logits)
