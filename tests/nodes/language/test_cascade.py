"""A cascade: a small model answers where it is sure, a large one where it is not, and who it was is
told."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import pytest_asyncio
from support.commands import environment
from support.talker import HELLO, LARGE, TALKER
from support.waiting import eventually

from nodes.up.mesh import LocalMesh
from swarm.errors import InvalidArgument, ResourceExhausted, Unavailable
from swarm.language.cascade import Cascade

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
ABSENT = "absent"
ALWAYS, NEVER = 0.0, -1e6  # thresholds


@pytest_asyncio.fixture(loop_scope="session")
async def local(pair: LocalMesh) -> LocalMesh:
    return pair


def sessions(local: LocalMesh) -> int:
    documents = [local.status_of(node) or {} for node in local.supervisor.nodes]
    return sum(stage["sessions"] for doc in documents for stage in doc.get("generation", []))


async def test_a_sure_model_answers_itself_and_a_larger_one_where_it_is_unsure(
    local: LocalMesh,
) -> None:
    alone = {
        name: await local.mesh.chat(name, HELLO, max_tokens=30).whole() for name in (TALKER, LARGE)
    }
    assert alone[TALKER].tokens != alone[LARGE].tokens
    for below, name in ((NEVER, TALKER), (ALWAYS, LARGE)):
        rule = Cascade(LARGE, below)
        answer = await local.mesh.chat(TALKER, HELLO, max_tokens=30, cascade=rule).whole()
        assert answer == alone[name]
        assert (answer.model, answer.degraded) == (name, False)
    await eventually(lambda: sessions(local) == 0, "the slots of both are free")


@pytest.mark.parametrize("by", ["mean", "least"])
async def test_the_first_tokens_log_probabilities_decide(local: LocalMesh, by: str) -> None:
    answer = local.mesh.generate(TALKER, "Once", max_tokens=4, logprobs=0)
    logs = [token.logprob async for token in answer]
    found = min(logs) if by == "least" else sum(logs) / len(logs)
    for below, name in ((found - 0.01, TALKER), (found + 0.01, LARGE)):
        rule = Cascade(LARGE, below, tokens=4, by=by)
        answer = local.mesh.generate(TALKER, "Once", max_tokens=20, cascade=rule)
        tokens = [token async for token in answer]
        assert answer.model == name
        assert {token.logprob for token in tokens} == {None}
        assert [token.seq for token in tokens] == list(range(20))


async def test_a_larger_model_that_cannot_answer_leaves_the_answer_and_degrades_it(
    local: LocalMesh,
) -> None:
    alone = await local.mesh.generate(TALKER, "Once", max_tokens=40).whole()
    rule = Cascade(ABSENT, ALWAYS, patience=0.3)
    answer = await local.mesh.generate(TALKER, "Once", max_tokens=40, cascade=rule).whole()
    assert (answer.text, answer.tokens) == (alone.text, alone.tokens)
    assert (answer.model, answer.degraded) == (TALKER, True)


async def test_where_the_small_model_cannot_answer_the_large_one_does(local: LocalMesh) -> None:
    alone = await local.mesh.generate(LARGE, "Once", max_tokens=20).whole()
    rule = Cascade(LARGE, NEVER, patience=5.0)
    answer = await local.mesh.generate(ABSENT, "Once", max_tokens=20, cascade=rule).whole()
    assert (answer.tokens, answer.model, answer.degraded) == (alone.tokens, LARGE, False)
    nobody = Cascade(ABSENT, NEVER, patience=0.3)
    with pytest.raises(Unavailable):
        await local.mesh.generate(ABSENT, "Once", cascade=nobody).whole()
    with pytest.raises(ResourceExhausted, match="shorten it by"):
        await local.mesh.generate(TALKER, "a" * 9000, cascade=LARGE).whole()
    with pytest.raises(InvalidArgument, match="no robots"):
        await local.mesh.chat(TALKER, [{"role": "robot", "content": ""}], cascade=LARGE).whole()


async def test_a_loop_that_is_left_ends_the_sessions_of_both(local: LocalMesh) -> None:
    for below in (NEVER, ALWAYS):
        answer = local.mesh.generate(
            TALKER, "Once", max_tokens=500, fit=True, cascade=Cascade(LARGE, below)
        )
        tokens = aiter(answer)
        await anext(tokens)
        await tokens.aclose()
        await eventually(lambda: sessions(local) == 0, "the slots of both are free")


async def test_the_command_says_who_answered(local: LocalMesh) -> None:
    command = [sys.executable, "-m", "nodes.cli.main", "generate", TALKER, "Once", "--json"]
    command += ["--nats", local.url, "--mesh", local.name, "--max-tokens", "20"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, "--cascade", LARGE, "--unsure", "0", env=environment(), stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out)
    wanted = await local.mesh.generate(LARGE, "Once", max_tokens=20).whole()
    assert (found["model"], found["degraded"]) == (LARGE, False)
    assert found["tokens"] == list(wanted.tokens)


async def test_a_talk_says_which_model_has_answered(local: LocalMesh) -> None:
    command = [sys.executable, "-m", "nodes.cli.main", "chat", TALKER, "--max-tokens", "20"]
    command += ["--nats", local.url, "--mesh", local.name, "--temperature", "0"]
    pipe = asyncio.subprocess.PIPE
    for unsure, name in (("0", LARGE), ("-1000000", TALKER)):
        rule = ("--cascade", LARGE, "--unsure", unsure)
        process = await asyncio.create_subprocess_exec(
            *command, *rule, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, err = await process.communicate(b"Hello.\n")
        wanted = await local.mesh.chat(name, HELLO, max_tokens=20).whole()
        assert out.decode() == f"{wanted.text}\n"
        assert err.decode() == f"{name} answered\n"
