"""A model split by a process that ends: what splitting needs is not kept while the mesh runs.

Splitting imports `onnx` and ONNX Runtime, and has the model in memory several times over.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from nodes.event_loop import SUPERVISOR
from nodes.up.supervisor import one_ends
from swarm.errors import Internal, error_for

CHECK_EVERY = 1.0  # seconds between checks, beside the kernel's word that the process ended
END_TIMEOUT = 5.0  # seconds to end after Ctrl-C


async def split_into(folder: Path, file: str, arguments: Sequence[str]) -> None:
    """Run `swarm model split FILE -o FOLDER ARGUMENTS`; `folder` must not exist yet.

    Raises the `SwarmError` that the command ends with. Cancelling ends the process.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code, said = await _run([file, "-o", str(folder), *arguments], output, errors)
        error = _error(said) if code else None
        if error is not None:  # the caller reports it, so that it is reported once
            raise error
        errors.seek(0)
        sys.stderr.write(errors.read().decode(errors="replace"))
        if code:
            raise Internal(f"the process that splits the model ended with code {code}")


async def _run(arguments: Sequence[str], output: IO[bytes], errors: IO[bytes]) -> tuple[int, bytes]:
    """The exit code of `swarm model split --json`, and what it printed. output, errors: files for
    that: a process that fills a pipe waits for its reader."""
    command = [sys.executable, "-m", "nodes.cli.main", "model", "split", *arguments, "--json"]
    process = subprocess.Popen(  # noqa: ASYNC220 - a millisecond, once
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=os.environ | {SUPERVISOR: str(os.getpid())},
        start_new_session=True,  # Ctrl-C is for this process, which ends the other one
    )
    try:
        while process.poll() is None:
            await one_ends([process.pid], CHECK_EVERY)
    finally:
        await _end(process)
    output.seek(0)
    return process.returncode, output.read()


async def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        await one_ends([process.pid], END_TIMEOUT)
    if process.poll() is None:
        process.kill()
    process.wait()


def _error(said: bytes) -> Exception | None:
    """The error that a command's `--json` document tells of; None where it tells of none."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        doc = json.loads(said)
        return error_for(str(doc["status"]), str(doc["error"]))
    return None
