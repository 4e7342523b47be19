"""Tokens of a language model in real processes, of which some are killed, stopped or drained."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import Any

import pytest
from nats.aio.client import Client
from support.waiting import eventually

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from swarm.errors import InvalidArgument, NotFound, ResourceExhausted
from swarm.wire.maps import pack

from .language import CONTEXT, MODEL, VOCABULARY, answer, prompt, undisturbed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

TOKENS = 300


def sessions(local: LocalMesh) -> int:
    """Sessions in the slots of all nodes, as their statuses tell."""
    documents = [local.status_of(node) or {} for node in local.supervisor.nodes]
    return sum(stage["sessions"] for doc in documents for stage in doc.get("generation", []))


async def takes_sessions(local: LocalMesh, node: NodeProcess) -> None:
    """Wait until a node that has just started gets the sessions of its stage."""

    def opened() -> int:
        stages = (local.status_of(node) or {}).get("generation", [])
        return sum(stage["counters"].get("opened", 0) for stage in stages)

    before = opened()
    async with asyncio.timeout(30.0):
        while opened() <= before:
            await local.mesh.generate(MODEL, prompt(0), max_tokens=2).whole()
            local.mesh.link.publish(local.mesh.subjects.status_request)
            await asyncio.sleep(0.05)


async def test_sessions_of_one_mesh_answer_as_one_process_does(local: LocalMesh) -> None:
    started = [asyncio.Event() for _ in range(6)]
    texts = await asyncio.gather(
        *(answer(local.mesh, number, 60, started[number]) for number in range(6))
    )
    assert texts == [undisturbed(number, 60) for number in range(6)]


BLOWS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]


# By default each stage and each blow once; every pair of them among the benchmarks.
@pytest.mark.parametrize(
    ("role", "blow"),
    [
        pytest.param(f"shard-{stage + 1}", blow, marks=[pytest.mark.benchmark] * (stage != at))
        for stage in range(3)
        for at, blow in enumerate(BLOWS)
    ],
)
async def test_a_stage_that_dies_hangs_or_drains_costs_a_pause_and_no_token(
    local: LocalMesh, role: str, blow: signal.Signals
) -> None:
    node = next(node for node in local.supervisor.nodes if node.role == role)
    await takes_sessions(local, node)
    started = [asyncio.Event() for _ in range(4)]
    answers = [
        asyncio.create_task(answer(local.mesh, number, TOKENS, started[number]))
        for number in range(4)
    ]
    await asyncio.gather(*(each.wait() for each in started))
    pid = node.pid
    node.signal(blow)
    try:
        texts = await asyncio.gather(*answers)
    finally:
        if blow is signal.SIGSTOP and node.pid == pid:
            node.signal(signal.SIGCONT)
    assert texts == [undisturbed(number, TOKENS) for number in range(4)]


async def test_a_prompt_that_begins_as_one_before_gives_the_same_tokens_from_a_copy(
    local: LocalMesh,
) -> None:
    def reused() -> int:
        documents = [local.status_of(node) or {} for node in local.supervisor.nodes]
        stages = [stage for doc in documents for stage in doc.get("generation", [])]
        return sum(stage["counters"].get("reused_tokens", 0) for stage in stages)

    before = reused()

    async def copied() -> bool:
        for cut in (200, 150):
            answer = await local.mesh.generate(MODEL, prompt(0, cut), max_tokens=30).whole()
            assert list(answer.tokens) == undisturbed(0, 30, cut)
        local.mesh.link.publish(local.mesh.subjects.status_request)
        return reused() - before >= 3 * 192

    await eventually(copied, "all stages have copied")


async def test_any_nats_client_gets_tokens_by_number_and_an_empty_message_at_the_end(
    nats_client: Client, local: LocalMesh
) -> None:
    inbox = nats_client.new_inbox()
    subscription = await nats_client.subscribe(inbox)
    request = {"prompt": prompt(0), "max_tokens": 20, "alternatives": 2}
    subject = local.mesh.subjects.under("generate", model=MODEL)
    await nats_client.publish(subject, json.dumps(request).encode(), reply=inbox)
    documents = []
    while data := (await subscription.next_msg(timeout=10.0)).data:
        documents.append(json.loads(data))
    accepted, *tokens = documents
    assert accepted["accepted"]
    assert accepted["prompt_tokens"] == 30
    assert [doc["seq"] for doc in tokens] == list(range(20))
    assert [doc["token"] for doc in tokens] == undisturbed(0, 20)
    assert all(doc["alternatives"][0][1] == doc["logprob"] <= 0 for doc in tokens)
    assert tokens[-1]["finish"] == "length"
    assert tokens[-1]["usage"] == {"prompt_tokens": 30, "completion_tokens": 20}


async def test_a_refusal_comes_before_the_first_token_and_names_the_context(
    nats_client: Client, local: LocalMesh
) -> None:
    with pytest.raises(ResourceExhausted, match=f"at most {CONTEXT - 30}"):
        await local.mesh.generate(MODEL, prompt(0), max_tokens=CONTEXT).whole()
    with pytest.raises(InvalidArgument, match="token ids"):
        await local.mesh.generate(MODEL, "Once").whole()
    with pytest.raises(NotFound):
        await local.mesh.generate(f"{MODEL}@9", prompt(0)).whole()
    message = await nats_client.request(
        local.mesh.subjects.under("generate", model=MODEL), b'{"prompt": []}'
    )
    assert (message.headers or {})["Nats-Service-Error-Code"] == "400"


async def test_ids_that_are_no_tokens_are_refused_wherever_they_come_in_and_others_answer_as_alone(
    nats_client: Client, local: LocalMesh
) -> None:
    beyond, subject = VOCABULARY, local.mesh.subjects.under("generate", model=MODEL)
    wrong: list[dict[str, Any]] = [
        {"prompt": [beyond]},
        {"prompt": [1, 2, 99999, 3]},
        {"prompt": [1], "given": [1, beyond]},
        {"key": "0" * 32, "prompt": [1], "made": [beyond]},
        {"prompt": [1], "first": beyond},
        {"prompt": [1], "stop_ids": [(1 << 31) - 1]},
    ]
    started = [asyncio.Event() for _ in range(3)]
    answers = [
        asyncio.create_task(answer(local.mesh, number, 200, started[number])) for number in range(3)
    ]
    await asyncio.gather(*(each.wait() for each in started))
    for asked in wrong:
        for body in (json.dumps(asked | {"max_tokens": 1}).encode(), pack(asked)):
            message = await nats_client.request(subject, body, timeout=10.0)
            assert (message.headers or {})["Nats-Service-Error-Code"] == "400"
            text = (message.headers or {})["Nats-Service-Error"]
            assert list(asked)[-1] in text, text
            assert f"ids are 0 to {VOCABULARY - 1}" in text, text
    for given in ({"stop_ids": [beyond]}, {}):
        ids = [1] if given else [beyond]
        with pytest.raises(InvalidArgument, match="no token of this model"):
            await local.mesh.generate(MODEL, ids, max_tokens=1, **given).whole()
    texts = await asyncio.gather(*answers)
    assert texts == [undisturbed(number, 200) for number in range(3)]


async def test_a_loop_that_is_left_frees_its_slots_on_all_stages(local: LocalMesh) -> None:
    async with contextlib.aclosing(_few(local)) as tokens:
        assert [token async for token in tokens] == undisturbed(0, 3)
    await eventually(lambda: sessions(local) == 0, "all slots are free")


async def _few(local: LocalMesh):  # type: ignore[no-untyped-def]
    answer = aiter(local.mesh.generate(MODEL, prompt(0), max_tokens=400))
    for _ in range(3):
        yield (await anext(answer)).token
    await answer.aclose()  # type: ignore[attr-defined]


async def test_a_client_that_is_gone_ends_its_session(
    nats_client: Client, local: LocalMesh
) -> None:
    inbox = nats_client.new_inbox()
    subscription = await nats_client.subscribe(inbox)
    request = json.dumps({"prompt": prompt(0), "max_tokens": 450}).encode()
    await nats_client.publish(
        local.mesh.subjects.under("generate", model=MODEL), request, reply=inbox
    )
    await subscription.next_msg(timeout=10.0)
    await nats_client.close()
    await eventually(lambda: sessions(local) == 0, "all slots are free")


async def test_more_sessions_of_one_client_than_its_share_are_refused_by_name(
    local: LocalMesh,
) -> None:
    async def one(number: int) -> str:
        try:
            await local.mesh.generate(MODEL, prompt(number), max_tokens=150).whole()
        except ResourceExhausted as error:
            return str(error)
        return ""

    said = await asyncio.gather(*(one(number) for number in range(24)))
    assert 4 <= sum(text == "" for text in said) < 24
    assert all("its share: ask again" in text for text in said if text)
    await eventually(lambda: sessions(local) == 0, "all slots are free")
