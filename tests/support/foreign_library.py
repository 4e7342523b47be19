"""Programs of others, and libraries, each in an environment of its own: their runs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from .commands import environment
from .meshes import READY


async def run(*words: str, within: float = READY) -> tuple[int, str, str]:
    """A command's exit code, its output and its errors."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*words, env=environment(), **pipes)
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def printed(*words: str) -> str:
    """What a command prints, which ends well."""
    code, out, err = await run(*words)
    assert code == 0, err
    return out


async def python_with(library: str, folder: Path) -> str:
    """An interpreter that has a library. Where it cannot be installed the test is skipped."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv, which makes the library's environment, is not installed")
    found = str(folder / "venv/bin/python")
    await run(uv, "venv", "-q", "--python", "3.11", str(folder / "venv"))
    code, _, err = await run(uv, "pip", "install", "-q", "--python", found, library)
    if code:
        pytest.skip(f"{library} cannot be installed: {err[:200]}")
    return found
