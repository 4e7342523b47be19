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
async def triton_load(
    protocol: str,
    address: str,
    model: str,
    given: tuple[str, np.ndarray],
    expected: tuple[str, np.ndarray],
    rate: float,
) -> AsyncIterator[Load]:
    """One client, which has its first answer when the block begins, and its last one behind it.
    given, expected: names and arrays."""
    load = Load(protocol)
    with tempfile.TemporaryDirectory(prefix="triton-") as folder:
        file = Path(folder) / "inputs.npz"
        np.savez(file, **dict([given, expected]))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), protocol, address, model, str(file), str(rate)),
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=64 << 20,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(LEAST_START):
                said = await process.stdout.readline()
            assert said == b"asking\n", "the client did not start: its error is above"
            yield load
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(GENEROUS):
                told = json.loads(await process.stdout.readline())
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    load.asked = [Asked(*each) for each in told]
