"""Drafts: the tokens are those without them, whatever dies; those that were right cost no round."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.language.effects import Guessing
from swarm.language.head import HeadCore
from swarm.language.limits import LanguageLimits
from swarm.language.request import GenerateRequest, Sampling
from swarm.language.speculation import FIRST_PAUSE, Benefit, Lookup, Speculation
from swarm.language.steps import Forward, TokenStep
from tests.sim.language.world import TICK, HalfRight, World, whole


def asked(number: int, tokens: int = 40) -> GenerateRequest:
    """A request; every second one draws its tokens."""
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=number) if number % 2 else Sampling()
    prompt = tuple((7 * number + one) % 41 for one in range(20))
    return GenerateRequest(
        session=f"s{number}", prompt=prompt, max_tokens=tokens, sampling=sampling
    )


RIGHT = {number: whole(asked(number), 3) for number in range(4)}
TEXTS = [[*asked(number).prompt, *made] for number, made in RIGHT.items()]


def world_of(
    drafts: int,
    *,
    seed: int = 1,
    loss: float = 0.0,
    wild: float = 0.0,
    kept: int = 1 << 20,
    follows: bool = False,
    model: bool = False,
) -> World:
    """Two nodes a stage, and a fallback that has all stages; about half of the drafts are right.
    follows: the fallback and one node of each stage do. model: the drafts are a draft model's."""
    chance = Random(seed)
    world = World(
        3,
        seed,
        loss=loss,
        wild=wild,
        limits=LanguageLimits(drafts=drafts, kept_bytes=kept),
        drafter=None if model else lambda: HalfRight(chance, TEXTS),
        model=HalfRight(chance, TEXTS) if model else None,
        # A text takes 0.1 s: followers hear of it in that time.
        tick=0.004 if follows else TICK,
    )
    for stage in (1, 2, 3):
        world.join(f"a{stage}", [stage])
        world.join(f"b{stage}", [stage], follows=follows)
    world.join("fallback", (1, 2, 3), priority=2, follows=follows)
    return world


def answered(world: World, *numbers: int) -> float:
    """The seconds of answers, which are those of an undisturbed process without drafts."""
    began = world.now
    clients = {number: world.client(asked(number)) for number in numbers}
    world.run(began + 100.0, lambda: all(each.follower.done for each in clients.values()))
    for number, client in clients.items():
        assert client.follower.error is None, client.follower.error
        assert [token.token for token in client.tokens] == RIGHT[number]
    return world.now - began


def count(world: World, name: str) -> int:
    return sum(
        core.counts[name] for node in world.nodes.values() for core, _ in node.cores.values()
    )


def test_drafts_that_are_right_cost_no_round_and_those_that_are_wrong_no_token() -> None:
    with_drafts, without = world_of(4), world_of(0)
    took = [sum(answered(w, number) for number in RIGHT) for w in (with_drafts, without)]
    assert count(with_drafts, "accepted") > 50
    assert count(with_drafts, "runs") + 2.5 * count(with_drafts, "accepted") < count(
        without, "runs"
    )
    assert took[0] < 0.8 * took[1]
    assert count(without, "accepted") == 0


def test_a_draft_model_costs_no_token_and_saves_runs_and_what_comes_late_is_dropped() -> None:
    with_model, without = world_of(4, model=True), world_of(0)
    for world in (with_model, without):
        for number in RIGHT:
            answered(world, number)
    assert count(with_model, "accepted") > 30
    assert count(with_model, "runs") + 2.5 * count(with_model, "accepted") < count(without, "runs")
    assert count(with_model, "late_drafts") > 0
    asked, said = Guessing("s9", (1, 2), 3, Sampling(), 0.1), count(with_model, "late_drafts")
    for node in with_model.nodes.values():
        for core, _ in node.cores.values():
            if isinstance(core, HeadCore):
                core.guessed(asked, (4, 5))  # of a session that is not here
    assert count(with_model, "late_drafts") > said


def test_beside_other_sessions_nothing_is_guessed() -> None:
    world = world_of(4)
    for number in range(2):
        world.client(asked(number))
    world.run(0.1)
    assert count(world, "tokens") > 20
    assert count(world, "accepted") == 0


@given(
    events=st.lists(
        st.tuples(
            st.floats(0.0, 0.4),
            st.sampled_from(["kill", "hang", "drain"]),
            st.sampled_from(["a1", "b1", "a2", "b2", "a3", "b3", "fallback"]),
        ),
        max_size=6,
    ),
    seed=st.integers(0, 1000),
    numbers=st.sampled_from([(0,), (1,), (2, 3)]),
    drafts=st.sampled_from([1, 4, 9]),
    loss=st.sampled_from([0.0, 0.0, 0.03]),
    wild=st.sampled_from([0.0, 0.05, 0.3]),
    kept=st.sampled_from([500, 1 << 20]),
    follows=st.booleans(),
    model=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_no_schedule_of_deaths_changes_a_token_of_a_session_with_drafts(
    events: list[tuple[float, str, str]],
    seed: int,
    numbers: tuple[int, ...],
    drafts: int,
    loss: float,
    wild: float,
    kept: int,
    follows: bool,
    model: bool,
) -> None:
    world = world_of(
        drafts, seed=seed, loss=loss, wild=wild, kept=kept, follows=follows, model=model
    )
    does: dict[str, Callable[[str], None]] = {
        "kill": world.kill,
        "hang": lambda name: world.hang(name, 2.5),
        "drain": world.drain,
    }
    for number, (at, kind, name) in enumerate(events):

        def happen(kind: str = kind, name: str = name, number: int = number) -> None:
            node = world.nodes[name]
            if not node.alive:
                return
            does[kind](name)
            if kind != "hang":
                stages, priority = list(node.cores), node.priority
                again = f"{name}n{number}"
                world.at(
                    world.now + 0.5,
                    lambda: world.join(again, stages, priority, follows) and None,
                )

        world.at(at, happen)
    answered(world, *numbers)


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


def test_a_draft_model_that_does_not_pay_is_asked_seldom_while_the_texts_drafts_go_on() -> None:
    speculation, asked, looked_up = Speculation(True), 0, 0
    for at in range(300):
        if at % 2 and speculation.lookup.wants_drafts:
            looked_up += 1
            speculation.ended(0.010, 4, speculation.lookup)
        elif speculation.asks_model:
            asked += 1
            speculation.ended(0.015, 1, speculation.model)  # it comes late, or guesses wrong
        else:
            speculation.ended(0.008, 1, None)
    assert asked < 30
    assert looked_up > 100
    speculation.reading = True
    assert not speculation.asks_model


def test_a_step_says_which_ids_are_drafts_and_which_were() -> None:
    step = TokenStep("s", 0, 5, 6, (1,), drafts=(2, 3), accepted=(8, 9))
    [read] = Forward.decode(b"".join(map(bytes, Forward("a", [step]).parts()))).steps
    assert read == step
    for wrong in (
        TokenStep("s", 0, 5, 7, (1,), drafts=(2,)),
        TokenStep("s", 0, 5, 6, (1,), drafts=tuple(range(40))),
        TokenStep("s", 0, 1, 2, (1,), accepted=(8, 9)),
    ):
        # Another session's step in the same message is none the worse.
        message = Forward.decode(b"".join(map(bytes, Forward("a", [wrong, step]).parts())))
        assert message.steps == [step]
        [(session, why)] = message.unread
        assert (session, "drafts" in why) == ("s", True)
