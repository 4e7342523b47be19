"""Draft models on real nodes: the tokens are those without, and what does not fit is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache

import pytest
from support.meshes import READY, mesh_of
from support.waiting import eventually
from zoo.language.decoder_graph import DecoderShape, decoder

from nodes.language.draft_model import DraftModel
from nodes.language.settings import GenerationOptions
from nodes.up.mesh import LocalMesh, push
from shards.language.kv_stage import KvStage
from shards.language.load import load_decoder_stage
from shards.split.split import SplitResult, split
from swarm.errors import InvalidArgument
from swarm.language.effects import Guessing

from .language import CONTEXT, MODEL, ROLES, VOCABULARY, answer, prompt, sampling, tiny, undisturbed

TOKENS = 120


@cache
def random_draft(vocabulary: int = VOCABULARY) -> SplitResult:
    """Of other weights than `tiny`: what it guesses is wrong."""
    shape = DecoderShape(layers=2, vocabulary=vocabulary, context=CONTEXT)
    return split(decoder(shape, seed=9), name=f"draft-{vocabulary}", stages=2, profile=False)


def stages(result: SplitResult) -> list[KvStage]:
    fetch = result.files.__getitem__
    shards = result.manifest.shards
    return [load_decoder_stage(result.manifest, each.stage, fetch, slots=1) for each in shards]


async def guess(model: DraftModel, ids: Sequence[int], most: int, number: int = 0) -> list[int]:
    done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    asked = Guessing("s", tuple(ids), most, sampling(number), 0.1)
    model.ask(asked, lambda _, found: done.set_result(list(found)))
    return await asyncio.wait_for(done, READY)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_model_that_is_its_own_draft_guesses_what_it_will_say(number: int) -> None:
    model, right = DraftModel(stages(tiny()), VOCABULARY), undisturbed(number, TOKENS)
    try:
        ids = prompt(number)
        assert await guess(model, ids, 0, number) == []
        for made in (0, 1, 6):
            text = [*ids, *right[:made]]
            assert await guess(model, text, 5, number) == right[made : made + 5]
        # Behind guesses that turned out wrong, and in another session, it says the same.
        await guess(model, [*ids, 7, 8, 9], 5, number)
        assert await guess(model, [*ids, *right[:3]], 5, number) == right[3:8]
        model.keep_only([])
        assert await guess(model, ids, 5, number) == right[:5]
    finally:
        model.close()


async def test_a_draft_model_says_nothing_beyond_its_context_and_its_tokens() -> None:
    model = DraftModel(stages(random_draft()), VOCABULARY - 1)
    try:
        assert await guess(model, [1] * (CONTEXT + 1), 4) == []
        assert await guess(model, [VOCABULARY - 1], 4) == []
        assert len(await guess(model, [1] * (CONTEXT - 2), 4)) == 2
        assert len(await guess(model, [1, 2], 4)) == 4
    finally:
        model.close()


def test_a_draft_model_needs_to_know_how_many_ids_to_guess() -> None:
    with pytest.raises(InvalidArgument, match="--drafts"):
        GenerationOptions(draft_model="small")


async def counters(local: LocalMesh) -> dict[str, int]:
    """Of all stages, from statuses that were told after this call."""
    nodes = local.supervisor.nodes
    seen = [local.status_of(node) for node in nodes]
    local.mesh.link.publish(local.mesh.subjects.status_request)
    await local.until(
        lambda: all(local.status_of(n) is not old for n, old in zip(nodes, seen, strict=True)),
        READY,
    )
    found: dict[str, int] = {}
    for node in nodes:
        for stage in (local.status_of(node) or {}).get("generation", []):
            for name, count in stage["counters"].items():
                found[name] = found.get(name, 0) + count
    return found


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.parametrize("right", [True, False], ids=["its own", "a random one"])
async def test_texts_are_those_without_a_draft_model_whether_it_is_right_or_wrong(
    right: bool,
) -> None:
    draft = tiny() if right else random_draft()
    drafts = ("--drafts", "4", "--draft-model", draft.manifest.model)
    async with mesh_of() as local:
        for each in (draft, tiny()):
            await push(local, each.manifest.to_json(), each.files)
        for role in ROLES[:3]:
            local.start(role, MODEL, *drafts)
        await local.ready(READY)
        text = await answer(local.mesh, 1, TOKENS, asyncio.Event())
        assert text == undisturbed(1, TOKENS)
        counted = await counters(local)
        # How long they are asked for is decided by times, which are the machine's.
        assert counted["drafts"] > 0
        assert (counted["accepted"] > 8) if right else (counted["accepted"] < counted["drafts"] / 4)


@pytest.mark.integration
@pytest.mark.processes
async def test_a_draft_model_with_other_tokens_is_refused_by_name() -> None:
    other = random_draft(VOCABULARY + 8)
    async with mesh_of() as local:
        for each in (other, tiny()):
            await push(local, each.manifest.to_json(), each.files)
        drafts = ("--drafts", "4", "--draft-model", f"{other.manifest.model}@1")
        node = local.start("fallback", MODEL, *drafts)
        name = f"{other.manifest.model}@1 cannot guess for {MODEL}@1: it has 264 token ids"
        await eventually(lambda: name in local.tail(node).replace("\n", " "), "the refusal", READY)
