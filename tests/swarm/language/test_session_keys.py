"""A session belongs to who shows its key; its id, and what it is called, open nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import InvalidArgument, PermissionDenied
from swarm.language.choice import SlotCandidate
from swarm.language.head import HeadCore
from swarm.language.keys import admitted, id_of, name_of, new_key, opened, session_id
from swarm.language.limits import Shape
from swarm.language.request import GenerateRequest, Opening
from swarm.language.steps import Failed, Forward, Gone, PassedRequest, Token, TokenStep
from tests.sim.language.world import World, whole

KEYS = st.integers(0, (1 << 128) - 1).map(lambda bits: f"{bits:032x}")
LABELS = st.text("abcXYZ019-_", max_size=30).filter(lambda text: session_id(text) == "")


def request(**more: Any) -> GenerateRequest:
    return GenerateRequest(**{"prompt": (1, 2, 3), "max_tokens": 12, **more})


def refusal(asked: GenerateRequest) -> str:
    with pytest.raises(PermissionDenied) as caught:
        admitted(asked)
    return str(caught.value)


@given(KEYS, KEYS, st.integers(0, 1 << 31))
def test_an_id_needs_its_own_key_and_every_refusal_is_the_same(
    key: str, other: str, epoch: int
) -> None:
    id_ = id_of(name_of(key))
    assert admitted(request(session=id_, key=key, epoch=epoch)).session == name_of(key)
    texts = {refusal(request(session=id_, epoch=epoch))}
    if other != key:
        texts.add(refusal(request(session=id_, key=other, epoch=epoch)))
        assert name_of(other) != name_of(key)
    texts |= {refusal(request(epoch=1)), refusal(request(head="n-1")), refusal(request(made=(1,)))}
    assert len(texts) == 1
    assert key not in texts.pop()


@given(LABELS)
def test_what_a_client_calls_a_session_without_a_key_says_nothing(label: str) -> None:
    first, second = admitted(request(session=label)), admitted(request(session=label))
    assert first.session != second.session
    assert admitted(request(session=label, key=first.key, epoch=1)).session == first.session


@given(KEYS)
def test_a_key_travels_to_the_node_that_tells_it_and_is_shown_by_no_text(key: str) -> None:
    asked = GenerateRequest.decode(opened(request()).encode())
    assert asked.key not in repr(asked)
    assert asked.key not in admitted(asked).encode().decode("latin-1")
    told = admitted(request(), lambda: key)
    assert GenerateRequest.decode(told.encode()).key == key
    assert key not in f"{told.session}{id_of(told.session)}"


@pytest.mark.parametrize("key", ["short", "A" * 32, "g" * 32, "0" * 33, " " + "0" * 31])
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        admitted(GenerateRequest.decode(json.dumps({"prompt": [1], "key": key}).encode()))
    assert key not in str(caught.value)
    with pytest.raises(InvalidArgument) as longer:
        GenerateRequest.decode(json.dumps({"prompt": [1], "key": key * 20}).encode())
    assert key not in str(longer.value)


def test_keys_and_ids_tell_nothing_of_others() -> None:
    keys = [new_key() for _ in range(200)]
    ids = [session_id(key) for key in keys]
    assert len(set(keys)) == len(set(ids)) == 200
    assert all(len(key) == 32 for key in keys)
    assert not any(key in id_ or name_of(key) in id_ for key, id_ in zip(keys, ids, strict=True))


# --- the state of a session on all stages, beside a thief -----------------------------------

CLAIMS = st.fixed_dictionaries(
    {"session": st.sampled_from(["id", "label", ""]), "prompt": st.just([5, 6, 7, 8])},
    optional={
        "epoch": st.sampled_from([0, 1, 2, 9, 1 << 31]),
        "made": st.lists(st.integers(0, 40), max_size=6),
        "head": st.sampled_from(["a1", "b1", "fallback"]),
        "key": st.sampled_from(["00" * 16, "11" * 16]),
    },
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 0.6), CLAIMS), max_size=8), st.integers(1, 3))
def test_no_schedule_of_claims_changes_a_token_of_another_client_or_brings_one(
    claims: list[tuple[float, dict[str, Any]]], last: int
) -> None:
    world = World(last, seed=len(claims))
    for stage in range(1, last + 1):
        world.join(f"a{stage}", [stage])
        world.join(f"b{stage}", [stage])
    wish = request(session="victim", max_tokens=30)
    victim = world.client(wish)
    names = {"id": victim.follower.request.session, "label": "victim", "": ""}

    def claim(doc: dict[str, Any]) -> None:
        asked = GenerateRequest.read({**doc, "session": names[doc["session"]], "max_tokens": 12})
        world.asks(asked, "thief")

    for at, doc in claims:
        world.at(at, lambda doc=doc: claim(doc))
    world.run(30.0)
    assert victim.follower.error is None
    assert [token.token for token in victim.tokens] == whole(wish, last)
    assert all(doc["session"] != names["id"] for doc in world.heard("thief"))


@pytest.mark.parametrize("follow", [False, True])
def test_stage_1_opens_no_session_by_a_step_of_somebody_else(follow: bool) -> None:
    core = HeadCore(2, "n", Shape(8, 64, 4, 64), lambda _: [SlotCandidate("n")], "w")
    step = TokenStep("s", 9, 0, 1, (1,), opening=Opening("r", "h", 1, 2))
    core.take(Forward("b", [step], follow=follow), 0.0)
    core.tick(0.1)
    assert not core.sessions
    assert not core.plan(0.2)


def test_nothing_that_a_node_hears_of_a_session_by_its_id_reaches_it() -> None:
    core = HeadCore(1, "n", Shape(8, 64, 4, 64, 41), lambda _: [SlotCandidate("n")], "w")
    asked = admitted(request(key="ab" * 16))
    core.ask(asked, "r", 0.0)
    for each in core.prepares():
        core.prepared(each.request, each.reply, 0.0)
    session = core.sessions[asked.session]
    core.flush()
    for text in (session.id, session.id.removeprefix("sid-"), "ab" * 16):
        core.close(text)  # as `cancel` does
        core.take(Forward("b", closed={text: 99}, left=[text]), 0.1)
        core.heard("n", [Gone(text), Failed(text, "no"), Token(text, 3, 5, "stop")], 0.1)
        core.take(
            Forward("b", asks=[PassedRequest(replace(asked, session=text, epoch=9), "thief")]), 0.1
        )
    assert core.sessions[asked.session] is session
    assert (session.closed, session.epoch, session.opening.reply) == (False, 0, "r")
    assert session.ids == [1, 2, 3]
    core.close(asked.session)
    assert session.closed, "its name does"
