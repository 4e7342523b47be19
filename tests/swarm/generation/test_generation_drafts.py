"""Drafts from a session's own text: the tokens are those without drafts, whatever dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import DecodeError
from swarm.generation.request import GenerateRequest, Sampling
from swarm.generation.speculation import FIRST_PAUSE, Benefit, Lookup
from swarm.generation.stage import Limits
from swarm.generation.steps import Forward, Step
from tests.sim.generation_world import World, whole

SYSTEM = tuple(range(41)) * 2


def asked(number: int, tokens: int = 60) -> GenerateRequest:
    """A request; every second one draws its tokens."""
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=number) if number % 2 else Sampling()
    prompt = SYSTEM + tuple((7 * number + one) % 41 for one in range(37))
    return GenerateRequest(
        session=f"s{number}", prompt=prompt, max_tokens=tokens, sampling=sampling
    )


def world_of(drafts: int, *, always: bool = True, seed: int = 1, loss: float = 0.0) -> World:
    """Two nodes a stage, and a fallback that has all stages."""
    world = World(3, seed, loss=loss, limits=Limits(drafts=drafts), always=always)
    for stage in (1, 2, 3):
        world.join(f"a{stage}", [stage])
        world.join(f"b{stage}", [stage])
    world.join("fallback", (1, 2, 3), priority=2)
    return world


def answered(world: World, request: GenerateRequest) -> float:
    """The seconds of an answer, which is the one of an undisturbed process without drafts."""
    began, client = world.now, world.client(request)
    world.run(began + 300.0, lambda: client.follower.done)
    assert client.follower.error is None, client.follower.error
    assert [token.token for token in client.tokens] == whole(request, 3)
    return world.now - began


def count(world: World, name: str) -> int:
    return sum(
        core.counts[name] for node in world.nodes.values() for core, _ in node.cores.values()
    )


def test_drafts_that_are_right_cost_no_round_and_those_that_are_wrong_no_token() -> None:
    with_drafts, without = world_of(4), world_of(0)
    took = [sum(answered(w, asked(n)) for n in range(6)) for w in (with_drafts, without)]
    assert count(with_drafts, "accepted") > 20
    assert count(with_drafts, "runs") < count(without, "runs")
    assert took[0] < took[1]
    assert count(without, "accepted") == 0


def test_beside_other_sessions_nothing_is_guessed() -> None:
    world = world_of(4)
    clients = [world.client(asked(number)) for number in range(3)]
    world.run(0.15)
    assert all(client.tokens for client in clients)
    assert count(world, "accepted") == 0


@given(
    events=st.lists(
        st.tuples(
            st.floats(0.0, 0.4),
            st.sampled_from(["kill", "hang", "drain"]),
            st.sampled_from(["a1", "b1", "a2", "b2", "a3", "b3"]),
        ),
        max_size=4,
    ),
    number=st.integers(0, 20),
    drafts=st.sampled_from([1, 3, 8]),
    loss=st.sampled_from([0.0, 0.0, 0.03]),
)
@settings(max_examples=25, deadline=None)
def test_no_schedule_of_deaths_changes_a_token_of_a_session_with_drafts(
    events: list[tuple[float, str, str]], number: int, drafts: int, loss: float
) -> None:
    world = world_of(drafts, seed=number, loss=loss)
    does: dict[str, Callable[[str], None]] = {
        "kill": world.kill,
        "hang": lambda name: world.hang(name, 2.5),
        "drain": world.drain,
    }
    for at, kind, name in events:
        happen = does[kind]
        world.at(at, lambda happen=happen, name=name: happen(name))
    answered(world, asked(number))


def test_a_draft_is_what_followed_the_last_ids_before() -> None:
    lookup = Lookup()
    assert lookup.draft([1, 2, 3, 4], 4) == ()
    assert lookup.draft([1, 2, 3, 4, 9, 2, 3], 4) == (4, 9, 2, 3)
    assert lookup.draft([1, 2, 3, 4, 9, 2, 3, 4], 2) == (9, 2)
    assert lookup.draft([1, 2, 3, 4, 9, 2, 3, 4], 0) == ()


def test_drafts_that_do_not_pay_are_left_for_a_while() -> None:
    benefit, drafted = Benefit(), 0
    for _ in range(200):
        wants = benefit.wants_drafts
        drafted += wants
        benefit.ended(0.010 if wants else 0.008, 1, wants)
    assert drafted < 30
    for _ in range(2 * FIRST_PAUSE + 200):
        wants = benefit.wants_drafts
        benefit.ended(0.010 if wants else 0.008, 3 if wants else 1, wants)
    assert benefit.pays


def test_a_step_says_which_of_its_ids_are_drafts_and_has_few_of_them() -> None:
    step = Step("s", 0, 5, 6, (1, 2, 3))
    [read] = Forward.decode(b"".join(map(bytes, Forward("a", [step]).parts()))).steps
    assert (read.drafts, read.asks, read.known) == (2, True, 6)
    for wrong in (Step("s", 0, 6, 6, (1,)), Step("s", 0, 5, 6, tuple(range(40)))):
        with pytest.raises(DecodeError):
            Forward.decode(b"".join(map(bytes, Forward("a", [wrong]).parts())))
