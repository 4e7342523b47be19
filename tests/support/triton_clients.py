"""tritonclient in processes of its own, which ask a gateway all the time: `triton_load.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .commands import environment
from .waiting import GENEROUS

PROGRAM = Path(__file__).with_name("triton_load.py")
LEAST_START = 60.0  # seconds that a client may take to start on a busy machine


@dataclass(frozen=True, slots=True)
class Asked:
    """began: of the system's clock. took: seconds. error: "" for a right answer."""

    began: float
    took: float
    error: str


@dataclass
class Load:
    """asked: all requests in the order of their ends, once the load is over."""

    protocol: str
    asked: list[Asked] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        return [each.error for each in self.asked if each.error]


@asynccontextmanager
async def triton_loads(
    addresses: dict[str, str],
    model: str,
    given: tuple[str, np.ndarray],
    expected: tuple[str, np.ndarray],
    rate: float,
) -> AsyncIterator[list[Load]]:
    """A client for each protocol, which has its first answer when the block begins, and its last
    one behind it. addresses: by protocol. given, expected: names and arrays."""
    async with contextlib.AsyncExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="triton-"))
        file = Path(folder) / "inputs.npz"
        np.savez(file, **dict([given, expected]))
        processes = []
        for protocol, address in addresses.items():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(PROGRAM), protocol, address, model, str(file), str(rate)),
                env=environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                limit=64 << 20,
            )
            ends.push_async_callback(_ended, process)
            processes.append(process)
        async with asyncio.timeout(LEAST_START):
            for process in processes:
                assert await _line(process) == b"asking\n", "a client failed: its error is above"
        loads = [Load(protocol) for protocol in addresses]
        yield loads
        for process in processes:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(GENEROUS):
            for load, process in zip(loads, processes, strict=True):
                load.asked = [Asked(*each) for each in json.loads(await _line(process))]


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


async def _ended(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
