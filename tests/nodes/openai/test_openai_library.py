"""The unmodified `openai` library drives the gateway, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.foreign_library import python_with, run
from support.gateways import address, gateway_of
from support.meshes import mesh_of
from support.talker import HELLO, TALKER, ids_of, talker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.benchmark,
    pytest.mark.asyncio,
]

CLIENT = Path(__file__).with_name("openai_client.py")
LIBRARY = "openai>=1.50,<4"


@pytest.fixture
async def python(tmp_path: Path) -> str:
    """An interpreter that has the library."""
    return await python_with(LIBRARY, tmp_path)


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
    for made in (found["parsed"], found["call"][2]):
        assert made["metres"] in range(10)
        assert made["side"] in ("left", "right")
    assert found["call"][:2] == ["function", "turn"]
    assert found["call streamed"] == [0, "turn", "tool_calls"]
    assert found["refused"] == ["model_not_found", "context_length_exceeded", "frequency_penalty"]
    assert found["async"] == wanted
