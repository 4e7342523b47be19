"""An ensemble: each token is the one whose mean probability over both whole models is the largest,
whichever nodes die."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.commands import environment
from support.meshes import all_ready
from support.talker import HELLO, LARGE, SILENT, STRANGER, TALKER, ids_of, probabilities, texts
from support.waiting import eventually

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from swarm.errors import InvalidArgument, Unavailable
from swarm.language.client import Generation
from swarm.language.ensemble import Ensemble

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
BOTH = f"{TALKER}+{LARGE}"
ROUNDING = 1e-6  # of a probability: a chunk's logits are not those of single tokens to the bit


@pytest_asyncio.fixture(loop_scope="session")
async def local(pair: LocalMesh) -> LocalMesh:
    return pair


def node_of(local: LocalMesh, role: str, model: str) -> NodeProcess:
    return next(
        node for node in local.supervisor.nodes if node.role == role and model in node.arguments
    )


def sessions(local: LocalMesh) -> int:
    documents = [local.status_of(node) or {} for node in local.supervisor.nodes]
    return sum(stage["sessions"] for doc in documents for stage in doc.get("generation", []))


def are_likeliest(prompt: list[int], made: tuple[int, ...], *seeds: int) -> np.ndarray:
    """Of each token: whether its mean probability is the largest, by the whole models."""
    ids = [*prompt, *made[:-1]]
    mean = sum(probabilities(seed, ids)[len(prompt) - 1 :] for seed in seeds) / len(seeds)
    chosen = mean[np.arange(len(made)), list(made)]
    return np.asarray(chosen >= mean.max(axis=-1) - ROUNDING)


@pytest.mark.parametrize("alternatives", [1, 8, 256])
async def test_each_token_is_the_one_of_the_largest_mean_probability(
    local: LocalMesh, alternatives: int
) -> None:
    rule = Ensemble(LARGE, alternatives)
    answer = local.mesh.chat(TALKER, HELLO, max_tokens=60, ensemble=rule)
    tokens = [token async for token in answer]
    made = tuple(token.token for token in tokens)
    assert are_likeliest(ids_of(HELLO), made, 0, 1).all()
    for seed in (0, 1):  # neither of them alone
        assert not are_likeliest(ids_of(HELLO), made, seed).all()
    assert [token.seq for token in tokens] == list(range(60))
    assert answer.text == texts().tokenizer.decode(made)
    assert (answer.model, answer.degraded, answer.finish) == (BOTH, False, "length")
    assert answer.usage.prompt_tokens == len(ids_of(HELLO))
    assert answer.usage.completion_tokens == 60


async def test_an_ensemble_ends_at_its_own_stop_ids_and_texts(local: LocalMesh) -> None:
    whole = await local.mesh.generate(TALKER, "Once", max_tokens=40, ensemble=LARGE).whole()
    end = whole.tokens[20]
    cut = await local.mesh.generate(
        TALKER, "Once", max_tokens=40, ensemble=LARGE, stop_ids=[end]
    ).whole()
    assert cut.tokens == whole.tokens[: whole.tokens.index(end) + 1]
    assert cut.finish == "stop"
    stop = whole.text[10:13]
    cut = await local.mesh.generate(
        TALKER, "Once", max_tokens=40, ensemble=LARGE, stop=stop
    ).whole()
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(stop)], "stop")


@pytest.mark.parametrize(("role", "model"), [("shard-1", TALKER), ("shard-2", LARGE)])
async def test_a_kill_of_a_shard_changes_no_token(local: LocalMesh, role: str, model: str) -> None:
    def asked() -> Generation:
        return local.mesh.generate(TALKER, "Once upon a time", max_tokens=80, ensemble=LARGE)

    wanted = await asked().whole()
    answer, made = asked(), []
    async for token in answer:
        made.append(token.token)
        if len(made) == 20:
            node_of(local, role, model).signal(signal.SIGKILL)
    assert (tuple(made), answer.text) == (wanted.tokens, wanted.text)
    assert not answer.degraded
    await all_ready(local)


async def test_a_model_that_hangs_leaves_the_other_one_alone_and_that_is_told(
    local: LocalMesh,
) -> None:
    answer = local.mesh.generate(TALKER, "Once", max_tokens=60, ensemble=Ensemble(LARGE, 32, 3.0))
    node, made, degraded = node_of(local, "shard-2", LARGE), [], []
    try:
        async for token in answer:
            made.append(token.token)
            degraded.append(answer.degraded)
            if len(made) == 10:
                node.signal(signal.SIGSTOP)
    finally:
        node.signal(signal.SIGCONT)
    prompt = texts().tokenizer.encode("Once")
    alone = np.array(degraded)
    assert not alone[:10].any()
    assert alone[-1]
    assert are_likeliest(prompt, tuple(made), 0, 1)[~alone].all()
    assert are_likeliest(prompt, tuple(made), 0)[alone].all()
    assert (answer.model, len(made)) == (TALKER, 60)


async def test_a_model_without_nodes_leaves_the_other_one_alone(local: LocalMesh) -> None:
    rule = Ensemble(SILENT, patience=0.3)
    alone = await local.mesh.generate(TALKER, "Once", max_tokens=20).whole()
    for model, other in ((TALKER, rule), (SILENT, Ensemble(TALKER, patience=0.3))):
        found = await local.mesh.generate(model, "Once", max_tokens=20, ensemble=other).whole()
        assert (found.tokens, found.text) == (alone.tokens, alone.text)
        assert (found.model, found.degraded) == (TALKER, True)
    with pytest.raises(Unavailable):
        await local.mesh.generate(SILENT, "Once", ensemble=rule).whole()


async def test_models_of_different_tokenizers_are_no_ensemble(local: LocalMesh) -> None:
    with pytest.raises(InvalidArgument, match=f"{TALKER} and {STRANGER} have different tok"):
        await local.mesh.generate(TALKER, "Once", ensemble=STRANGER).whole()
    await eventually(lambda: sessions(local) == 0, "the slots of both are free")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"repetition_penalty": 1.1},
        {"recommended": True},
        {"schema": {}},
        {"logprobs": 2},
        {"cascade": LARGE},
    ],
)
async def test_what_an_ensemble_cannot_do_is_refused(
    local: LocalMesh, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=r"^ensemble: "):
        local.mesh.generate(TALKER, "Once", ensemble=LARGE, **options)


async def test_a_loop_that_is_left_ends_the_sessions_of_both_models(local: LocalMesh) -> None:
    answer = local.mesh.generate(TALKER, "Once", max_tokens=500, fit=True, ensemble=LARGE)
    tokens = aiter(answer)
    for _ in range(5):
        await anext(tokens)
    await tokens.aclose()
    await eventually(lambda: sessions(local) == 0, "the slots of both are free")


async def test_the_commands_answer_with_both_models(local: LocalMesh) -> None:
    common = ["--nats", local.url, "--mesh", local.name, "--max-tokens", "20", "--ensemble", LARGE]
    pipe = asyncio.subprocess.PIPE
    for words, said in ((["generate", TALKER, "Once"], b""), (["chat", TALKER], b"Hello.\n")):
        command = [sys.executable, "-m", "nodes.cli.main", *words, *common]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, err = await process.communicate(said)
        mesh, options = local.mesh, {"max_tokens": 20, "ensemble": LARGE}
        asked = (
            mesh.chat(TALKER, HELLO, **options)
            if said
            else mesh.generate(TALKER, "Once", **options)
        )
        assert process.returncode == 0, err.decode()
        assert out.decode() == f"{(await asked.whole()).text}\n"
        assert f"{BOTH} answered\n" in err.decode()
