"""A cascade that a client of OpenAI's protocol asks for: who answered is told."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.gateways import address, ask, gateway_of
from support.meshes import add_model, mesh_of
from support.talker import HELLO, LARGE, SILENT, TALKER, talker

from nodes.up.mesh import LocalMesh

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
ABSENT = "absent"
ALWAYS, NEVER = 0.0, -1e6  # thresholds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[LocalMesh]:
    """Two models of one tokenizer, and one that no node serves."""
    async with mesh_of(talker(), "shard-1", "shard-2") as local:
        await add_model(local, talker(name=LARGE, seed=1), "shard-1", "shard-2")
        await add_model(local, talker(1, SILENT))
        yield local


async def test_a_gateway_says_which_model_answered(local: LocalMesh) -> None:
    node = await gateway_of(local, "--http", "0")
    url = f"{address(local, node)}/v1/chat/completions"
    usual = {"model": TALKER, "messages": HELLO, "max_tokens": 20, "temperature": 0}
    for below, name in ((NEVER, TALKER), (ALWAYS, LARGE)):
        wanted = await local.mesh.chat(name, HELLO, max_tokens=20).whole()
        body = usual | {"cascade": {"large": LARGE, "below": below}}
        code, _, found = await asyncio.to_thread(ask, url, body)
        assert (code, found["model"], found["system_fingerprint"]) == (200, name, f"{name}@1")
        assert found["choices"][0]["message"]["content"] == wanted.text
        assert "degraded" not in found
    code, _, found = await asyncio.to_thread(ask, url, usual | {"cascade": ABSENT})
    assert (code, found["error"]["code"]) == (404, "model_not_found")


async def test_a_gateway_says_that_the_larger_model_could_not_answer(local: LocalMesh) -> None:
    node = await gateway_of(local, "--http", "0")
    url = f"{address(local, node)}/v1/chat/completions"
    body = {"model": TALKER, "messages": HELLO, "max_tokens": 20, "temperature": 0}
    body |= {"cascade": {"large": SILENT, "below": 0, "patience": 0.3}}
    wanted = await local.mesh.chat(TALKER, HELLO, max_tokens=20).whole()
    code, _, found = await asyncio.to_thread(ask, url, body)
    assert (code, found["model"], found["degraded"]) == (200, TALKER, True)
    assert found["choices"][0]["message"]["content"] == wanted.text
    body |= {"stream": True}
    request = urllib.request.Request(url, json.dumps(body).encode())
    with await asyncio.to_thread(urllib.request.urlopen, request) as response:
        lines = (await asyncio.to_thread(response.read)).decode().split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks
    assert all(chunk["degraded"] for chunk in chunks)
