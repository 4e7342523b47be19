"""The unmodified `openai` library drives the gateway, in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from support.commands import environment
from support.gateways import address, gateway_of
from support.meshes import READY, mesh_of
from support.talker import HELLO, TALKER, ids_of, talker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.benchmark,
    pytest.mark.asyncio,
]

CLIENT = Path(__file__).with_name("openai_client.py")
LIBRARY = "openai>=1.50,<4"


async def run(*words: str) -> tuple[int, str, str]:
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*words, env=environment(), **pipes)
    try:
        async with asyncio.timeout(READY):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def python(tmp_path: Path) -> str:
    """An interpreter that has the library."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv, which makes the library's environment, is not installed")
    found = str(tmp_path / "venv/bin/python")
    await run(uv, "venv", "-q", str(tmp_path / "venv"))
    code, _, err = await run(uv, "pip", "install", "-q", "--python", found, LIBRARY)
    if code:
        pytest.skip(f"the library cannot be installed: {err[:200]}")
    return found


async def test_openais_library_chats_streams_and_hears_refusals(python: str) -> None:
    async with mesh_of(talker(), "shard-1", "shard-2") as local:
        node = await gateway_of(local, "--http", "0")
        code, out, err = await run(python, str(CLIENT), address(local, node), TALKER)
        wanted = (await local.mesh.chat(TALKER, HELLO, max_tokens=20).whole()).text
        once = (await local.mesh.generate(TALKER, "Once", max_tokens=10).whole()).text
    assert code == 0, err
    found = json.loads(out)
    assert (found["models"], found["retrieved"]) == ([TALKER], TALKER)
    assert (found["whole"], found["finish"], found["logprobs"]) == (wanted, "length", 20)
    assert found["usage"] == len(ids_of(HELLO)) + 20
    assert found["stream usage"] == len(ids_of(HELLO)) + 40
    assert found["streamed"] == [wanted, wanted]
    assert (found["text"], found["text streamed"]) == (once, once)
    assert found["refused"] == ["model_not_found", "context_length_exceeded", "frequency_penalty"]
    assert found["async"] == wanted
