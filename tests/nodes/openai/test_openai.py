"""OpenAI's protocol at the gateway: curl and a socket drive it, as any client may."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.foreign_library import printed
from support.gateways import address, ask, gateway_of
from support.meshes import all_ready, mesh_of
from support.talker import CONTEXT, HELLO, TALKER, ids_of, talker
from support.waiting import GENEROUS, eventually

from nodes.gateway.access.rules import block, new_key
from nodes.up.mesh import LocalMesh

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

LONG = 400


@dataclass
class Rig:
    """A mesh with a language model, and two gateways: of loopback, and of listed callers."""

    local: LocalMesh
    url: str
    listed: str
    key: str
    slow_key: str
    poor_key: str

    def post(self, path: str, body: Any, url: str = "", **headers: str) -> tuple[int, Any, Any]:
        named = {"content_type": "application/json", **headers}
        return ask(f"{url or self.url}/v1/{path}", body, **named)

    def chat(self, **fields: Any) -> Any:
        """The document of a chat's answer."""
        code, _, document = self.post("chat/completions", chat(**fields))
        assert code == 200, document
        return document

    def refused(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        code, _, document = self.post(path, body)
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        return code, document["error"]

    def sessions(self) -> int:
        documents = [self.local.status_of(node) or {} for node in self.local.supervisor.nodes]
        return sum(stage["sessions"] for doc in documents for stage in doc.get("generation", []))


def chat(**fields: Any) -> dict[str, Any]:
    usual = {"model": TALKER, "messages": HELLO, "temperature": 0, "max_tokens": 20}
    return usual | fields


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    keys = [new_key(), new_key(), new_key()]
    callers = written(tmp_path_factory.mktemp("callers") / "callers.toml", *keys)
    async with mesh_of(talker(), "shard-1", "shard-2") as local:
        first = await gateway_of(local, "--http", "0")
        second = await gateway_of(local, "--http", "0", "--gateway-callers", str(callers))
        yield Rig(local, address(local, first), address(local, second), *keys)


def written(path: Path, key: str, slow_key: str, poor_key: str) -> Path:
    """Three callers; the second may ask every five seconds, the third use a token a second."""
    path.touch(0o600)
    path.write_text(block("robot", key, 0.0) + block("toy", slow_key, 0.2))
    with path.open("a") as file:
        file.write(block("poor", poor_key, 0.0) + "tokens = 1\n")
    return path


async def curl(*words: str) -> str:
    return await printed("curl", "-sS", "-N", "--max-time", "30", *words)


async def opened(url: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a chat was asked for, and nothing else will be."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return reader, writer


def unchunked(answer: bytes) -> bytes:
    """The body of an answer that came in chunks."""
    _, _, left = answer.partition(b"\r\n\r\n")
    body = b""
    while left:
        size, _, left = left.partition(b"\r\n")
        length = int(size, 16)
        body, left = body + left[:length], left[length + 2 :]
    return body


async def test_curl_lists_the_language_models_and_reads_a_stream_to_its_end(rig: Rig) -> None:
    listed = json.loads(await curl(f"{rig.url}/v1/models"))
    assert [one["id"] for one in listed["data"]] == [TALKER]
    assert json.loads(await curl(f"{rig.url}/v1/models/{TALKER}"))["id"] == TALKER
    body = chat(stream=True, stream_options={"include_usage": True})
    said = await curl(f"{rig.url}/v1/chat/completions", "--json", json.dumps(body))
    *events, done, end = said.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    wanted = await rig.local.mesh.chat(TALKER, HELLO, max_tokens=20).whole()
    *chunks, last = documents
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(deltas) == wanted.text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 20 + ["length"]
    usage = {"prompt_tokens": len(ids_of(HELLO)), "completion_tokens": 20}
    assert last["choices"] == []
    assert last["usage"] == usage | {"total_tokens": sum(usage.values())}
    assert len({document["id"] for document in documents}) == 1


async def test_a_whole_answer_is_that_of_the_mesh_with_its_log_probabilities(rig: Rig) -> None:
    tools = [{"type": "function", "function": {"name": "move", "parameters": {}}}]
    document = await asyncio.to_thread(rig.chat, logprobs=True, top_logprobs=2, tools=tools)
    answer = rig.local.mesh.chat(TALKER, HELLO, max_tokens=20, tools=tools, logprobs=2)
    tokens = [token async for token in answer]
    [choice] = document["choices"]
    assert choice["message"]["content"] == answer.text
    assert choice["finish_reason"] == "length"
    told = choice["logprobs"]["content"]
    assert [one["logprob"] for one in told] == pytest.approx([token.logprob for token in tokens])
    assert [one["token"] for one in told] == [token.pieces[0] for token in tokens]
    assert all(len(one["top_logprobs"]) == 2 for one in told)
    assert document["usage"]["prompt_tokens"] == len(ids_of(HELLO, tools))


async def test_an_answer_has_the_form_that_the_client_asks_for(rig: Rig) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = schema_format(schema)
    document = await asyncio.to_thread(rig.chat, response_format=form, max_tokens=60)
    [choice] = document["choices"]
    assert json.loads(choice["message"]["content"])["a"] in (1, 2)
    assert choice["finish_reason"] == "stop"
    mesh = rig.local.mesh.chat(TALKER, HELLO, schema=schema, max_tokens=60)
    assert (await mesh.whole()).text == choice["message"]["content"]


async def test_a_call_that_is_required_is_one_of_the_tools(rig: Rig) -> None:
    tools = [move_tool("go"), move_tool("turn")]
    for choice, names in (("required", {"go", "turn"}), (named("turn"), {"turn"})):
        asked = {"tools": tools, "tool_choice": choice, "max_tokens": 200, "temperature": 1}
        document = await asyncio.to_thread(rig.chat, seed=2, **asked)
        [answer] = document["choices"]
        [call] = answer["message"]["tool_calls"]
        assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
        assert call["function"]["name"] in names
        assert json.loads(call["function"]["arguments"])["metres"] in range(10)
        history = [*HELLO, answer["message"], {"role": "tool", "content": "Done."}]
        again = await asyncio.to_thread(rig.chat, messages=history, tools=tools)
        assert again["usage"]["prompt_tokens"] > document["usage"]["prompt_tokens"]


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def move_tool(name: str) -> dict[str, Any]:
    metres = {"type": "integer", "minimum": 0, "maximum": 9}
    parameters = {"type": "object", "properties": {"metres": metres}, "required": ["metres"]}
    parameters["additionalProperties"] = False
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


async def test_a_text_goes_on_and_a_stop_string_cuts_it(rig: Rig) -> None:
    wanted = (await rig.local.mesh.generate(TALKER, "Once", max_tokens=30).whole()).text
    body = {"model": TALKER, "prompt": ["Once", "Once"], "temperature": 0, "max_tokens": 30}
    _, _, document = await asyncio.to_thread(rig.post, "completions", body | {"logprobs": 1})
    assert [one["text"] for one in document["choices"]] == [wanted, wanted]
    assert document["usage"]["total_tokens"] == 2 * (4 + 30)
    assert len(document["choices"][1]["logprobs"]["text_offset"]) == 30
    _, _, cut = await asyncio.to_thread(rig.post, "completions", body | {"stop": [wanted[9:12]]})
    assert cut["choices"][0]["text"] == wanted[: wanted.index(wanted[9:12])]
    assert cut["choices"][0]["finish_reason"] == "stop"


async def test_a_prompt_of_several_that_is_bad_is_bad_alone_and_a_single_one_is_refused(
    rig: Rig,
) -> None:
    usual = {"model": TALKER, "temperature": 0, "max_tokens": 12}
    good: list[list[int]] = [[65 + number] for number in range(8)]
    alone = [rig.post("completions", usual | {"prompt": one})[2]["choices"][0] for one in good]
    for bad in ([99999], [1] * (CONTEXT + 1)):
        code, error = rig.refused("completions", usual | {"prompt": bad})
        assert code == 400
        for place in (0, 3, 7):
            prompts = [bad if number == place else one for number, one in enumerate(good)]
            code, _, document = rig.post("completions", usual | {"prompt": prompts})
            assert code == 200, document
            for number, choice in enumerate(document["choices"]):
                if number == place:
                    assert (choice["finish_reason"], choice["error"]) == ("error", error)
                else:
                    assert choice == alone[number] | {"index": number}
            assert document["usage"]["completion_tokens"] == 7 * 12
            assert document["usage"]["prompt_tokens"] == 7
    prompts = [good[0], [99999], good[2]]
    body = json.dumps(usual | {"prompt": prompts, "stream": True})
    said = await curl(f"{rig.url}/v1/completions", "--json", body)
    *events, done = [line[6:] for line in said.splitlines() if line]
    assert done == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    texts = ["".join(c["text"] for c in choices if c["index"] == at) for at in range(3)]
    assert texts == [alone[0]["text"], "", alone[2]["text"]]
    [failed] = [choice for choice in choices if choice["finish_reason"] == "error"]
    assert (failed["index"], failed["error"]["param"]) == (1, "prompt")
    code, error = rig.refused("completions", usual | {"prompt": [[99999], [88888]]})
    assert (code, error["param"]) == (400, "prompt")


async def test_choices_differ_and_a_seed_draws_them_again(rig: Rig) -> None:
    asked = {"n": 3, "seed": 7, "temperature": 1.0}
    first, second = [await asyncio.to_thread(rig.chat, **asked) for _ in range(2)]
    texts = [one["message"]["content"] for one in first["choices"]]
    assert len(set(texts)) == 3
    assert texts == [one["message"]["content"] for one in second["choices"]]
    alone = await asyncio.to_thread(rig.chat, seed=7, temperature=1.0)
    assert alone["choices"][0]["message"]["content"] == texts[0]


async def test_an_answer_without_a_number_of_tokens_ends_with_the_context(rig: Rig) -> None:
    document = await asyncio.to_thread(rig.chat, max_tokens=None)
    assert document["usage"]["total_tokens"] == CONTEXT


async def test_what_cannot_be_answered_is_refused_in_openais_shape(rig: Rig) -> None:
    cases: list[tuple[dict[str, Any], int, str | None, str | None]] = [
        (chat(model="absent"), 404, "model_not_found", None),
        (chat(max_tokens=CONTEXT), 400, "context_length_exceeded", None),
        (
            chat(messages=[{"role": "user", "content": "a" * 9000}]),
            400,
            "context_length_exceeded",
            None,
        ),
        (chat(messages=[{"role": "robot", "content": "Hi"}]), 400, None, None),
        (chat(messages=[]), 400, None, "messages"),
        (chat(temperature=3), 400, None, "temperature"),
        (chat(n=99), 400, None, "n"),
        (chat(logit_bias={"5": 1}), 400, None, "logit_bias"),
        (chat(response_format={"type": "yaml"}), 400, None, "response_format"),
        (chat(response_format=schema_format({"type": "robot"})), 400, None, "schema"),
        (chat(tool_choice="required"), 400, None, "tool_choice"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            400,
            None,
            "messages",
        ),
    ]
    for stream in (False, True):
        for body, code, name, param in cases:
            found, error = await asyncio.to_thread(
                rig.refused, "chat/completions", body | {"stream": stream}
            )
            assert (found, error["code"], error["param"]) == (code, name, param), error
    code, error = await asyncio.to_thread(rig.refused, "embeddings", {})
    assert code == 404
    said = await curl(f"{rig.url}/v1/chat/completions", "--data-binary", "@/dev/null")
    assert json.loads(said)["error"]["type"] == "invalid_request_error"


async def test_keys_and_quotas_are_those_of_the_gateway(rig: Rig) -> None:
    async def asked(**headers: str) -> tuple[int, Any, Any]:
        return await asyncio.to_thread(rig.post, "chat/completions", chat(), rig.listed, **headers)

    code, _, document = await asked()
    assert (code, document["error"]["code"]) == (401, "invalid_api_key")
    assert (await asked(authorization=f"Bearer {rig.key}"))[0] == 200
    assert (await asked(authorization=f"Bearer {rig.slow_key}"))[0] == 200
    code, headers, document = await asked(authorization=f"Bearer {rig.slow_key}")
    assert (code, document["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["retry-after"]) >= 1
    assert (await asked(authorization=f"Bearer {rig.poor_key}"))[0] == 200
    code, headers, document = await asked(authorization=f"Bearer {rig.poor_key}")
    assert (code, document["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "tokens a second" in document["error"]["message"]
    assert int(headers["retry-after"]) >= 5


async def test_a_stage_that_is_killed_costs_a_stream_a_pause_and_no_letter(rig: Rig) -> None:
    wanted = (await rig.local.mesh.chat(TALKER, HELLO, max_tokens=LONG).whole()).text
    for role in ("shard-1", "shard-2"):
        node = next(node for node in rig.local.supervisor.nodes if node.role == role)
        reader, writer = await opened(rig.url, chat(stream=True, max_tokens=LONG))
        async with asyncio.timeout(GENEROUS):
            said = b""
            while said.count(b"data: ") < 20:
                said += await reader.read(1 << 12)
            node.signal(signal.SIGKILL)
            assert said.count(b"data: ") < LONG
            said += await reader.read()
        writer.close()
        *events, done, _ = unchunked(said).decode().split("\n\n")
        assert done == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert "".join(one["choices"][0]["delta"]["content"] for one in chunks) == wanted
        await all_ready(rig.local)


async def test_a_client_that_goes_away_ends_its_session(rig: Rig) -> None:
    reader, writer = await opened(rig.url, chat(stream=True, max_tokens=LONG, n=2))
    async with asyncio.timeout(GENEROUS):
        await reader.readuntil(b'"content":""')
    writer.close()
    await eventually(lambda: rig.sessions() == 0, "all slots are free")


async def test_hundreds_of_sessions_are_refused_by_name_and_others_go_on(rig: Rig) -> None:
    wanted = (await rig.local.mesh.chat(TALKER, HELLO, max_tokens=LONG).whole()).text
    other = asyncio.create_task(rig.local.mesh.chat(TALKER, HELLO, max_tokens=LONG).whole())

    async def one() -> bytes:
        reader, writer = await opened(rig.url, chat(max_tokens=100))
        try:
            return await reader.read()
        finally:
            writer.close()

    async with asyncio.timeout(GENEROUS):
        said = await asyncio.gather(*(one() for _ in range(500)))
    codes = [int(answer.split()[1]) for answer in said]
    assert set(codes) == {200, 429}
    assert all(b"retry-after: 1\r\n" in answer for answer in said if b" 429 " in answer[:16])
    assert (await other).text == wanted
    began = time.monotonic()
    assert (await asyncio.to_thread(rig.chat))["choices"]
    assert time.monotonic() - began < GENEROUS
    await eventually(lambda: rig.sessions() == 0, "all slots are free")


async def test_the_pages_line_of_a_language_model_answers_when_it_is_pasted(rig: Rig) -> None:
    _, _, document = await asyncio.to_thread(ask, f"{rig.url}/page/models")
    [model] = [each for each in document["models"] if each["name"] == TALKER]
    assert (await printed("bash", "-c", model["lines"]["curl"])).endswith("data: [DONE]\n\n")
    assert await printed("bash", "-c", model["lines"]["python"])
