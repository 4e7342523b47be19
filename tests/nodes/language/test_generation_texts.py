"""Texts and chats: the nodes read and write them, and people talk in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio
from support.commands import environment
from support.meshes import mesh_of
from support.talker import CONTEXT, HELLO, TALKER, ids_of, talker, texts
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.mesh import LocalMesh
from swarm.errors import InvalidArgument, ResourceExhausted

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[LocalMesh]:
    async with mesh_of(talker(), "shard-1", "shard-2") as local:
        yield local


async def test_a_chat_is_answered_as_the_ids_of_its_template_are(local: LocalMesh) -> None:
    tools = [{"type": "function", "function": {"name": "move"}}]
    for given in ([], tools):
        ids = ids_of(HELLO, given)
        wanted = await local.mesh.generate(TALKER, ids, max_tokens=40).whole()
        answer = await local.mesh.chat(TALKER, HELLO, max_tokens=40, tools=given).whole()
        assert answer == wanted
        assert answer.usage.prompt_tokens == len(ids)
        assert answer.text == texts().tokenizer.decode(answer.tokens)


async def test_a_clients_own_connection_brings_the_same_tokens(local: LocalMesh) -> None:
    wanted = await local.mesh.generate(TALKER, "Once", max_tokens=20).whole()
    client = await nats.connect(local.url)
    try:
        async with swarm.over(client, local.mesh.subjects.mesh) as over:
            assert await over.generate(TALKER, "Once", max_tokens=20).whole() == wanted
            async for _ in over.generate(TALKER, "Once", max_tokens=20):
                break  # a loop that is left ends the session
            assert (await over.chat(TALKER, HELLO, max_tokens=4).whole()).tokens
        assert client.is_connected
    finally:
        await client.close()


async def test_a_stop_string_ends_a_text_before_it(local: LocalMesh) -> None:
    whole = await local.mesh.generate(TALKER, "Once", max_tokens=40).whole()
    stop = whole.text[5:8]
    cut = await local.mesh.generate(TALKER, "Once", max_tokens=40, stop=stop).whole()
    assert cut.finish == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]


async def test_a_token_comes_with_its_own_text_and_those_of_its_alternatives(
    local: LocalMesh,
) -> None:
    async for token in local.mesh.generate(TALKER, "Once", max_tokens=5, logprobs=2):
        assert token.pieces[0] == texts().tokenizer.decode([token.token])
        assert len(token.pieces) == 3


async def test_an_answer_goes_on_behind_a_beginning_that_is_given(local: LocalMesh) -> None:
    whole = await local.mesh.generate(TALKER, "Once", max_tokens=30).whole()
    pieces = [token.text async for token in local.mesh.generate(TALKER, "Once", max_tokens=30)]
    client = await nats.connect(local.url)
    for first in (None, 65):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        body = {"text": "Once", "given": whole.tokens[:10], "max_tokens": 20, "first": first}
        await client.publish(
            local.mesh.subjects.under("generate", model=TALKER),
            json.dumps(body).encode(),
            inbox,
        )
        found = []
        while data := (await subscription.next_msg(timeout=GENEROUS)).data:
            found.append(json.loads(data))
        tokens = [doc for doc in found if "token" in doc]
        assert [doc["seq"] for doc in tokens] == list(range(20))
        if first is None:
            assert tuple(doc["token"] for doc in tokens) == whole.tokens[10:]
            assert [doc["text"] for doc in tokens] == pieces[10:]
        else:
            assert tokens[0]["token"] == first
    await client.close()


async def test_an_answer_that_may_be_shorter_fits_into_the_context(local: LocalMesh) -> None:
    with pytest.raises(ResourceExhausted, match=f"at most {CONTEXT - 4}"):
        await local.mesh.generate(TALKER, "Once", max_tokens=CONTEXT).whole()
    answer = await local.mesh.generate(TALKER, "Once", max_tokens=CONTEXT, fit=True).whole()
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == CONTEXT


async def test_texts_that_cannot_be_read_are_refused_by_name_and_others_go_on(
    local: LocalMesh,
) -> None:
    other = asyncio.create_task(local.mesh.generate(TALKER, "Once", max_tokens=200).whole())
    with pytest.raises(InvalidArgument, match="no robots"):
        await local.mesh.chat(TALKER, [{"role": "robot", "content": "Hi"}]).whole()
    for length in (CONTEXT, 200_000):
        with pytest.raises(ResourceExhausted, match=r"no room.*shorten it by \d+"):
            await local.mesh.generate(TALKER, "a" * length, fit=True).whole()
    client = await nats.connect(local.url)
    subject = local.mesh.subjects.under("generate", model=TALKER)
    for data in (b'{"text": "\xff\xfe"}', b'{"text": "\\ud800"}', b'{"messages": [1]}'):
        headers = (await client.request(subject, data)).headers or {}
        assert headers["Nats-Service-Error-Code"] == "400"
    await client.close()
    assert (await other).usage.completion_tokens == 200


async def test_a_pipe_gets_the_answers_of_a_talk_and_its_history_is_sent(
    local: LocalMesh,
) -> None:
    process = await _chat(local, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, err = await process.communicate(b"Hello.\nAnd then?\n/new\nHello.\n/exit\n")
    assert process.returncode == 0, err
    first = (await local.mesh.chat(TALKER, HELLO, max_tokens=30).whole()).text
    said = [*HELLO, {"role": "assistant", "content": first}]
    said.append({"role": "user", "content": "And then?"})
    second = (await local.mesh.chat(TALKER, said, max_tokens=30).whole()).text
    assert out.decode() == f"{first}\n{second}\n{first}\n"


async def test_a_line_that_is_no_utf_8_is_refused(local: LocalMesh) -> None:
    process = await _chat(local, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate(b"\xff\xfe\n")
    assert process.returncode == 1
    assert b"no UTF-8" in err


async def test_a_wrong_name_is_told_at_once(local: LocalMesh) -> None:
    process = await _chat(local, name="absent", stderr=asyncio.subprocess.PIPE)
    _, err = await asyncio.wait_for(process.communicate(), GENEROUS)
    assert process.returncode == 1
    assert b"absent" in err


async def test_ctrl_c_stops_an_answer_and_a_second_one_the_program(local: LocalMesh) -> None:
    terminal, theirs = pty.openpty()
    process = await _chat(local, "--max-tokens", "460", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        await _until(terminal, "> ")
        os.write(terminal, b"Hello.\n")
        await _until(terminal, r"Hello\.\s+\S")
        process.send_signal(signal.SIGINT)
        await _until(terminal, r"\[stopped\]\s+> ")
        await eventually(lambda: _sessions(local) == 0, "the slots are free")
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), GENEROUS) == 0
    finally:
        os.close(terminal)
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _chat(
    local: LocalMesh, *flags: str, name: str = TALKER, **pipes: int
) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "nodes.cli.main", "chat", name, "--nats", local.url]
    command += ["--mesh", local.name, *(flags or ("--max-tokens", "30"))]
    return await asyncio.create_subprocess_exec(*command, env=environment(), **pipes)


async def _until(terminal: int, pattern: str) -> str:
    """What a terminal shows, up to a pattern."""
    shown = ""
    async with asyncio.timeout(GENEROUS):
        while not re.search(pattern, shown):
            shown += (await asyncio.to_thread(os.read, terminal, 4096)).decode(errors="replace")
    return shown


def _sessions(local: LocalMesh) -> int:
    documents = [local.status_of(node) or {} for node in local.supervisor.nodes]
    return sum(stage["sessions"] for doc in documents for stage in doc.get("generation", []))
