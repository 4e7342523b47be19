"""Answers under a JSON schema: valid, the same after a kill -9, and hostile ones are refused."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import nats
import pytest
import pytest_asyncio
from support.commands import environment
from support.meshes import all_ready, mesh_of
from support.talker import HELLO, TALKER, talker

from nodes.up.mesh import LocalMesh
from swarm.errors import InvalidArgument

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LONG = {"type": "array", "items": {"enum": ["left", "right"]}, "minItems": 30, "maxItems": 30}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[LocalMesh]:
    async with mesh_of(talker(), "shard-1", "shard-2", "fallback") as local:
        yield local


async def test_an_answer_parses_and_is_valid_greedy_and_drawn(local: LocalMesh) -> None:
    for temperature in (0.0, 1.0):
        answer = await local.mesh.chat(
            TALKER, HELLO, schema=PERSON, temperature=temperature, max_tokens=300, seed=3
        ).whole()
        jsonschema.validate(json.loads(answer.text), PERSON)
        assert answer.finish == "stop"


@pytest.mark.parametrize("role", ["shard-1", "shard-2"])
async def test_an_answer_under_a_schema_is_the_same_after_a_kill(
    local: LocalMesh, role: str
) -> None:
    def asked() -> Any:
        return local.mesh.generate(
            TALKER, "Turn", schema=LONG, temperature=1.0, max_tokens=400, seed=5
        )

    wanted = await asked().whole()
    jsonschema.validate(json.loads(wanted.text), LONG)
    node = next(node for node in local.supervisor.nodes if node.role == role)
    answer, made = asked(), []
    async for token in answer:
        made.append(token.token)
        if len(made) == 20:
            node.signal(signal.SIGKILL)
    assert (tuple(made), answer.text, answer.finish) == (wanted.tokens, wanted.text, "stop")
    await all_ready(local)


async def test_a_hostile_schema_is_refused_before_the_first_token_and_others_go_on(
    local: LocalMesh,
) -> None:
    other = asyncio.create_task(local.mesh.generate(TALKER, "Once", max_tokens=300).whole())
    hostile = {"type": "integer", "multipleOf": 999983}
    slow = {"type": "string", "pattern": "^(x{1000}){1000}$"}
    large = {"enum": ["x" * 20_000]}
    for schema in (hostile, slow, large, {"type": "robot"}, "[]", "{"):
        with pytest.raises(InvalidArgument, match=r"^schema: "):
            await local.mesh.chat(TALKER, HELLO, schema=schema).whole()
    assert (await other).usage.completion_tokens == 300


async def test_any_client_writes_a_schema_as_a_map(local: LocalMesh) -> None:
    client = await nats.connect(local.url)
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    body = {"text": "Turn", "schema": PERSON, "max_tokens": 300}
    await client.publish(
        local.mesh.subjects.under("generate", model=TALKER), json.dumps(body).encode(), inbox
    )
    said = ""
    while data := (await subscription.next_msg(timeout=30)).data:
        said += json.loads(data).get("text", "")
    await client.close()
    jsonschema.validate(json.loads(said), PERSON)


async def test_the_command_takes_a_schema_from_a_file(local: LocalMesh, tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    file.write_text(json.dumps(PERSON))
    command = [sys.executable, "-m", "nodes.cli.main", "generate", TALKER, "Once"]
    command += ["--nats", local.url, "--mesh", local.name, "--max-tokens", "300"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, "--schema", str(file), env=environment(), stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    jsonschema.validate(json.loads(out), PERSON)
