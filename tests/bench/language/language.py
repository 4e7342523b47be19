"""The language model of the benchmarks, its requests, and one process that holds all of it.

    python -m bench.language.language FOLDER

is that process, the floor: each line on standard input is JSON, `[sessions, tokens]`; the answer is
a line with the ids, the seconds of each session's first token, and those of each later turn, in
which all sessions decode in one run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from zoo.language.decoder_graph import DecoderShape, decoder

from bench.language.run import Run
from shards.language.load import load_decoder_stage
from shards.manifest import read_dir
from shards.split.split import SplitResult, split
from swarm.language.request import Sampling
from swarm.language.sampling import choose

MODEL = "language"
SHAPE = DecoderShape(
    layers=6,
    width=192,
    heads=6,
    kv_heads=2,
    head_dim=32,
    feedforward=512,
    vocabulary=2048,
    context=512,
)
PROMPT = 32  # tokens
MOST_SESSIONS = 16
LONGEST = 1 << 24  # bytes of an answer's line


@cache
def language(stages: int) -> SplitResult:
    """The model, split."""
    return split(decoder(SHAPE), name=MODEL, stages=stages, profile=False)


def prompt(number: int) -> list[int]:
    """Token ids of a session's prompt."""
    rows = np.random.default_rng(number).integers(0, SHAPE.vocabulary, PROMPT)
    return [int(each) for each in rows]


def sampling(number: int) -> Sampling:
    """Every second session draws its tokens."""
    return Sampling(temperature=0.8, top_p=0.95, seed=number) if number % 2 else Sampling()


class Engine:
    """A process that holds the whole model: `start`, `answer`, `stop`. module: whose program it
    is."""

    def __init__(self, folder: Path, module: str = __name__) -> None:
        self._folder, self._module = folder, module
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Until it can answer."""
        command = [sys.executable, "-m", self._module, str(self._folder)]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=LONGEST
        )
        await self.answer(1, 2)

    async def answer(self, sessions: int, tokens: int) -> Run:
        """What so many sessions answer. Raises `RuntimeError` where the process has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([sessions, tokens]).encode() + b"\n")
        async with asyncio.timeout(120.0):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self._module} has ended")
        found = json.loads(line)
        took = found["first"][-1] + sum(found["turns"])
        return Run(found["ids"], found["first"], found["turns"], took)

    async def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def answers(stage: Any, sessions: Sequence[int], tokens: int) -> dict[str, Any]:
    """Sessions, by number, from a stage that is the whole model."""
    ids = {number: prompt(number) for number in sessions}
    began, first, turns = time.perf_counter(), [], []
    for slot, number in enumerate(sessions):
        logits = stage.run(np.array([ids[number]], np.int64), slot, np.array([0]))
        ids[number].append(choose(logits[0], sampling(number), ids[number]).token)
        first.append(time.perf_counter() - began)
    for _ in range(tokens - 1):
        began = time.perf_counter()
        rows = np.array([ids[number][-1:] for number in sessions], np.int64)
        held = np.array([len(ids[number]) - 1 for number in sessions], np.int64)
        logits = stage.run(rows, 0, held)
        for row, number in zip(logits, sessions, strict=True):
            ids[number].append(choose(row, sampling(number), ids[number]).token)
        turns.append(time.perf_counter() - began)
    made = [ids[number][PROMPT:] for number in sessions]
    return {"ids": made, "first": first, "turns": turns}


def main(folder: str) -> None:
    manifest, fetch = read_dir(folder)
    stage = load_decoder_stage(manifest, 1, fetch, slots=MOST_SESSIONS)
    for line in sys.stdin:
        sessions, tokens = json.loads(line)
        print(json.dumps(answers(stage, range(sessions), tokens)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
