"""A small random language model, its requests, and what one process with all stages answers."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
from zoo.language.decoder_graph import DecoderShape, decoder

import swarm
from shards.language.load import load_decoder_stage
from shards.split.split import SplitResult, split
from swarm.language.request import Sampling
from swarm.language.sampling import choose

ROLES = ("shard-1", "shard-2", "shard-3", "fallback")
MODEL, VOCABULARY, CONTEXT = "tiny", 256, 512


@cache
def tiny() -> SplitResult:
    model = decoder(DecoderShape(layers=6, vocabulary=VOCABULARY, context=CONTEXT))
    return split(model, name=MODEL, stages=3, profile=False)


def prompt(number: int, length: int = 30) -> list[int]:
    return [(37 * number + 11 * at) % VOCABULARY for at in range(length)]


def sampling(number: int) -> Sampling:
    """Every second request draws its tokens."""
    return Sampling(temperature=0.8, top_p=0.95, seed=number) if number % 2 else Sampling()


@cache
def undisturbed(number: int, tokens: int, length: int = 30) -> list[int]:
    """The answer of one process with all stages."""
    result = tiny()
    stages = [
        load_decoder_stage(result.manifest, s.stage, result.files.__getitem__, slots=1)
        for s in result.manifest.shards
    ]
    ids, held = prompt(number, length), 0
    while len(ids) < length + tokens:
        rows = np.array([ids[held:]], np.int64)
        for stage in stages:
            rows = stage.run(rows, 0, np.array([held]))
        held = len(ids)
        ids.append(choose(rows[0], sampling(number), ids).token)
    for stage in stages:
        stage.close()
    return ids[length:]


async def answer(mesh: swarm.Mesh, number: int, tokens: int, started: asyncio.Event) -> list[int]:
    """A request's tokens; `started` is set once a few have come."""
    drawn = sampling(number)
    made = []
    async for token in mesh.generate(
        MODEL,
        prompt(number),
        max_tokens=tokens,
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        seed=drawn.seed,
        budget=60.0,
    ):
        made.append(token.token)
        if len(made) == 5:
            started.set()
    return made
