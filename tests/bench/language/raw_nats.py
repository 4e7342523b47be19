"""The mesh's own stage files behind nats-py and nothing else: three processes, core NATS.

    client ──prompts──► stage 1 ──► stage 2 ──► stage 3 ──tokens──► stage 1, and the client

A turn is one run for each range of neighbouring slots, and one message to the next stage, as in the
mesh. Nothing is kept: a process that dies takes all sessions with it. A message is the number of
steps, `[slot, position, tokens, until]` of each in 64 bits, and then the ids or the hidden states.
A session ends when it has `until` ids.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.language.language import MOST_SESSIONS, PROMPT, prompt, sampling
from bench.language.run import Run
from bench.rivals.processes import Processes
from bench.rivals.systems.raw_nats import connect, serve_stage, start_server, subject
from shards.language.kv_stage import KvStage
from shards.language.load import load_decoder_stage
from shards.manifest import read_dir
from swarm.language.sampling import choose
from swarm.language.turns import ranges

CLIENT = "peers.client"
LONGEST = 120.0  # seconds of a slice


@dataclass(frozen=True, slots=True)
class Step:
    """rows: [tokens] ids, or [tokens, width] hidden states. until: the ids at which it ends."""

    slot: int
    position: int
    until: int
    rows: np.ndarray


def pack(steps: Iterable[Step]) -> bytes:
    """A message."""
    steps = list(steps)
    table = [[step.slot, step.position, len(step.rows), step.until] for step in steps]
    head = np.array([len(steps), *np.ravel(table)], np.int64)
    return b"".join([head.tobytes(), *(step.rows.tobytes() for step in steps)])


def unpack(data: bytes, width: int) -> list[Step]:
    """The steps of a message. width: of hidden states; 0 for ids."""
    count = int(np.frombuffer(data, np.int64, 1)[0])
    table = np.frombuffer(data, np.int64, 4 * count, 8).reshape(count, 4).tolist()
    body = np.frombuffer(data, np.float32 if width else np.int64, offset=8 + 32 * count)
    rows, steps, at = body.reshape((-1, width) if width else (-1,)), [], 0
    for slot, position, tokens, until in table:
        steps.append(Step(slot, position, until, rows[at : at + tokens]))
        at += tokens
    return steps


class RawStage:
    """One stage: what came since the last turn is computed in the next one."""

    def __init__(self, connection: Any, stage: KvStage, number: int) -> None:
        self._connection, self._stage, self._number = connection, stage, number
        self._waiting: list[Step] = []
        self._came = asyncio.Event()

    async def on_message(self, message: Any) -> None:
        self._waiting += unpack(message.data, 0 if self._stage.first else self._stage.width)
        self._came.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while await self._came.wait():
            self._came.clear()
            steps, self._waiting = self._waiting, []
            made = self._computed(steps)
            if not self._stage.last:
                await self._connection.publish(subject(self._number + 1), pack(made))
                continue
            tokens = pack(made)
            if going := [step for step in made if step.position + 1 < step.until]:
                await self._connection.publish(subject(1), pack(going))
            await self._connection.publish(CLIENT, tokens)

    def _computed(self, steps: list[Step]) -> list[Step]:
        made = []
        for step in steps:
            if len(step.rows) > 1:
                rows = self._stage.run(step.rows[None], step.slot, np.array([step.position]))
                made.append(self._after(step, rows[0]))
        single = {step.slot: step for step in steps if len(step.rows) == 1}
        for slots in ranges(single):
            batch = [single[slot] for slot in slots]
            positions = np.array([step.position for step in batch], np.int64)
            rows = self._stage.run(np.stack([step.rows for step in batch]), slots[0], positions)
            made += [self._after(step, row) for step, row in zip(batch, rows, strict=True)]
        return made

    def _after(self, step: Step, rows: np.ndarray) -> Step:
        """What goes on: hidden states, or the token that the last stage chooses."""
        if not self._stage.last:
            return Step(step.slot, step.position, step.until, rows)
        index = step.position + len(step.rows)
        token = choose(rows, sampling(step.slot), range(index)).token
        return Step(step.slot, index, step.until, np.array([token], np.int64))


async def attach(connection: Any, stage: KvStage, number: int) -> asyncio.Task[None]:
    """Subscribe one stage."""
    raw = RawStage(connection, stage, number)
    await connection.subscribe(subject(number), cb=raw.on_message, pending_bytes_limit=1 << 30)
    return asyncio.create_task(raw.run())


class RawNats:
    """The client, and the owner of the stages: `start`, `answer`, `stop`."""

    def __init__(self, folder: Path, scratch: Path, stages: int) -> None:
        self._folder, self._stages = folder, stages
        self._processes = Processes(scratch)
        self._connection: Any = None
        self._tokens: asyncio.Queue[tuple[float, list[Step]]] = asyncio.Queue()

    async def start(self) -> None:
        """Until it can answer. Blocks the loop while the processes start."""
        url = start_server(self._processes)
        for number in range(1, self._stages + 1):
            words = (str(self._folder), str(number), url)
            self._processes.spawn_module(f"stage-{number}", __name__, *words)
        self._connection = await connect(url)
        await self._connection.subscribe(CLIENT, cb=self._on_tokens)
        await self._connection.flush()
        await self.answer(1, 2)

    async def _on_tokens(self, message: Any) -> None:
        self._tokens.put_nowait((time.perf_counter(), unpack(message.data, 0)))

    async def answer(self, sessions: int, tokens: int) -> Run:
        """So many sessions at once. Raises `TimeoutError`."""
        ids: list[list[int]] = [[] for _ in range(sessions)]
        first: list[float] = []
        between: list[float] = []
        began = time.perf_counter()
        last = [began] * sessions
        for number in range(sessions):
            step = Step(number, 0, PROMPT + tokens, np.array(prompt(number), np.int64))
            await self._connection.publish(subject(1), pack([step]))
        async with asyncio.timeout(LONGEST):
            while any(len(each) < tokens for each in ids):
                now, steps = await self._tokens.get()
                for step in steps:
                    (between if ids[step.slot] else first).append(now - last[step.slot])
                    ids[step.slot].append(int(step.rows[0]))
                    last[step.slot] = now
        return Run(ids, first, between, max(last) - began)

    async def stop(self) -> None:
        """End all of it."""
        if self._connection is not None:
            await self._connection.close()
        self._processes.stop()


def load(folder: str, number: int) -> KvStage:
    manifest, fetch = read_dir(folder)
    return load_decoder_stage(manifest, number, fetch, slots=MOST_SESSIONS)


if __name__ == "__main__":
    serve_stage(attach, load, sys.argv[1:])
