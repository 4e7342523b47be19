"""Processes of a benchmark that do what must not disturb the benchmark's own process.

Commands go to a helper's standard input, answers come from its standard output, both as JSON, one a
line. A helper ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from nodes.event_loop import die_with_parent
from swarm.errors import Unavailable

LONGEST_LINE = 1 << 27  # bytes


class Helper:
    """A running helper, on the side of the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process, module: str) -> None:
        self.process = process
        self._module = module

    async def answer(self, command: Any = None, within: float = 60.0) -> Any:
        """The answer to a command; without one, the next line. Raises `Unavailable` where the
        process has ended, and `TimeoutError`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if command is not None:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(within):
            line = await self.process.stdout.readline()
        if not line:
            raise Unavailable(f"{self._module} ended early: its error stands above")
        return json.loads(line)


@asynccontextmanager
async def helper(
    module: str, arguments: Any, ends_within: float = 10.0, inside: Sequence[str] = ()
) -> AsyncIterator[Helper]:
    """Start `python -m module <arguments as JSON>`; it has ended behind the block. inside: words
    before the command, which run it elsewhere."""
    process = await asyncio.create_subprocess_exec(
        *(*inside, sys.executable, "-m", module, json.dumps(arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield Helper(process, module)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(ends_within):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


# --- inside of a helper -----------------------------------------------------------------


def arguments() -> Any:
    """The arguments of this process."""
    return json.loads(sys.argv[1])


def tell(answer: Any) -> None:
    """Send one line."""
    print(json.dumps(answer), flush=True)


async def commands() -> AsyncIterator[Any]:
    """Each command, until the input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def input_ended() -> None:
    """Until the benchmark wants this process to end."""
    async for _ in commands():
        pass
