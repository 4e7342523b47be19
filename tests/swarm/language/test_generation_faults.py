"""Whatever dies, hangs or is lost: the text is the one of an undisturbed process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.language.limits import LanguageLimits, Shape
from swarm.language.request import GenerateRequest, Opening, Sampling
from swarm.language.stage import StageCore
from swarm.language.steps import Forward, Token, TokenStep
from tests.sim.language.world import CONTEXT, WIDTH, NumpyDecoder, World, whole

PROMPT = tuple(range(1, 38))


SYSTEM = tuple(range(41)) * 4  # a prompt's beginning, longer than two chunks


def asked(
    number: int = 0, *, tokens: int = 40, prompt: int = 37, system: int = 0
) -> GenerateRequest:
    """A request; every second one draws its tokens. system: ids of a beginning that all share."""
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=number) if number % 2 else Sampling()
    return GenerateRequest(
        session=f"s{number}",
        prompt=SYSTEM[:system] + tuple((7 * number + one) % 41 for one in range(prompt)),
        max_tokens=tokens,
        sampling=sampling,
    )


def fleet(world: World, follows: bool = False) -> World:
    """Two nodes a stage, and a fallback that has all stages. follows: it and one of each two do."""
    for stage in range(1, world.last + 1):
        world.join(f"a{stage}", [stage])
        world.join(f"b{stage}", [stage], follows=follows)
    world.join("fallback", range(1, world.last + 1), priority=2, follows=follows)
    return world


def counted(world: World, kind: str) -> int:
    """Of all stages of all nodes."""
    cores = (core for node in world.nodes.values() for core, _ in node.cores.values())
    return sum(core.counts[kind] for core in cores)


def all_texts_are_as_if_undisturbed(world: World, requests: list[GenerateRequest]) -> None:
    world.run(300.0, lambda: all(c.follower.done for c in world.clients.values()))
    for request in requests:
        client = world.clients[request.session]
        assert client.follower.error is None, client.follower.error
        assert [token.token for token in client.tokens] == whole(request, world.last)
        assert client.tokens[-1].finish == "length"
    # Senders that hung go on: they leave an idle session, and their followers theirs after them.
    world.run(world.now + 75.0)
    nodes = [node for node in world.nodes.values() if node.alive]
    assert not [node.name for node in nodes for core, _ in node.cores.values() if core.sessions]
    assert not [node.name for node in nodes for core, _ in node.cores.values() if core.kept_bytes]


@pytest.mark.parametrize("last", [1, 2, 3])
def test_tokens_come_in_order_from_one_to_three_stages(last: int) -> None:
    world = fleet(World(last, 1))
    requests = [asked(number) for number in range(5)]
    for request in requests:
        world.client(request)
    all_texts_are_as_if_undisturbed(world, requests)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_stage_that_is_killed_in_mid_sentence_costs_no_token(stage: int) -> None:
    world = fleet(World(3, 2))
    requests = [asked(number, tokens=60) for number in range(4)]
    for request in requests:
        world.client(request)
    world.at(0.05, lambda: world.kill(f"a{stage}"))
    world.at(0.05, lambda: world.kill(f"b{stage}"))
    all_texts_are_as_if_undisturbed(world, requests)
    pauses = [
        max(after - before for before, after in zip(c.times, c.times[1:], strict=False))
        for c in world.clients.values()
    ]
    assert 0.001 < max(pauses) < 2.5


def test_hidden_states_beyond_the_bound_are_computed_again_from_token_ids() -> None:
    world = fleet(World(3, 3, limits=LanguageLimits(kept_bytes=300)))
    requests = [asked(number, tokens=60) for number in range(3)]
    for request in requests:
        world.client(request)
    for name in ("a2", "b2"):
        world.at(0.06, lambda name=name: world.kill(name))
    for name in ("a3", "b3"):
        world.at(0.9, lambda name=name: world.kill(name))
    all_texts_are_as_if_undisturbed(world, requests)


def test_a_node_that_drains_hands_its_sessions_to_others() -> None:
    world = fleet(World(3, 4))
    requests = [asked(number, tokens=100) for number in range(4)]
    for request in requests:
        world.client(request)
    for at, stage in ((0.05, 1), (0.3, 2), (0.6, 3)):
        world.at(at, lambda stage=stage: world.drain(f"a{stage}"))
    all_texts_are_as_if_undisturbed(world, requests)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("last", [1, 3])
def test_sessions_that_begin_alike_compute_it_once_on_all_stages(last: int, together: bool) -> None:
    world = World(last, 5, slots=3)
    for stage in range(1, last + 1):
        world.join(f"a{stage}", [stage])
    requests = [asked(number, system=130, prompt=10 + number) for number in range(3)]
    requests.append(asked(3, prompt=140))
    for number, request in enumerate(requests):
        after = (0.02 if together else 1.0) * number
        world.at(after, lambda request=request: world.client(request) and None)
    world.run(0.1 if together else 3.1)
    all_texts_are_as_if_undisturbed(world, requests)
    assert counted(world, "reused_tokens") == 2 * 128 * last


def test_a_node_that_lacks_a_beginning_gets_it_computed() -> None:
    world = World(3, 6)
    for name, stage in (("a1", 1), ("a2", 2), ("a3", 3)):
        world.join(name, [stage])
    first, second = asked(0, system=130), asked(1, system=130)
    world.client(first)
    world.at(1.0, lambda: world.join("b2", [2]) and None)
    world.at(1.0, lambda: world.kill("a2"))
    world.at(2.0, lambda: world.client(second) and None)
    world.run(2.1)
    all_texts_are_as_if_undisturbed(world, [first, second])
    assert counted(world, "reused_tokens") >= 128


def test_a_session_goes_to_the_node_that_holds_its_beginning_on_every_stage() -> None:
    world = World(3, 8, slots=6)
    for stage in range(1, 4):
        world.join(f"a{stage}", [stage])
        world.join(f"b{stage}", [stage])
    requests = [asked(number, system=130) for number in range(8)]
    for number, request in enumerate(requests):
        world.at(1.0 * number, lambda request=request: world.client(request) and None)
    world.run(7.1)
    all_texts_are_as_if_undisturbed(world, requests)
    assert counted(world, "reused_tokens") == 7 * 128 * 3


def opened(world: World, name: str) -> int:
    """Sessions that a node's first stage has had."""
    return world.nodes[name].cores[1][0].counts["opened"]


def test_a_node_with_many_more_sessions_gets_no_more_for_the_beginning_that_it_holds() -> None:
    world = World(1, 9, slots=8)
    world.join("a1", [1])
    first, *requests = [asked(number, system=130, tokens=200) for number in range(9)]
    world.client(first)
    world.run(1.0)
    world.join("b1", [1])
    for number, request in enumerate(requests):
        world.at(1.2 + 0.04 * number, lambda request=request: world.client(request) and None)
    world.run(1.6)
    all_texts_are_as_if_undisturbed(world, [first, *requests])
    assert opened(world, "a1") >= 4
    assert opened(world, "b1") >= 2


def test_sessions_that_a_full_node_was_asked_for_go_on_to_another_one() -> None:
    world = World(1, 10, slots=4)
    world.join("a1", [1])
    world.client(asked(0, system=130))
    world.run(1.0)
    world.join("b1", [1])
    requests = [asked(number, system=130) for number in range(1, 9)]
    for request in requests:
        world.at(1.5, lambda request=request: world.client(request) and None)
    world.run(1.6)
    all_texts_are_as_if_undisturbed(world, requests)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_follower_goes_on_behind_what_it_holds(stage: int) -> None:
    def run(follows: bool) -> tuple[int, float]:
        """Runs of the node that took over, behind the death; the longest pause."""
        world = World(3, 11)
        for number in range(1, 4):
            world.join(f"a{number}", [number])
        world.join("fallback", range(1, 4), priority=2, follows=follows)
        requests = [asked(number, tokens=200, system=100) for number in range(3)]
        for request in requests:
            world.client(request)
        world.run(0.9)
        heir = world.nodes["fallback"].cores[stage][0]
        assert (heir.served, len(heir.sessions)) == (0, 3 if follows else 0)
        before = heir.counts["runs"]
        world.kill(f"a{stage}")
        world.run(1.1)
        assert heir.served == 3
        assert heir.counts["taken_over"] == (3 if follows else 0)
        runs = heir.counts["runs"] - before
        all_texts_are_as_if_undisturbed(world, requests)
        clients = world.clients.values()
        return runs, max(b - a for c in clients for a, b in zip(c.times, c.times[1:], strict=False))

    (warm, short), (cold, long) = run(True), run(False)
    assert warm < cold
    assert short < long / 2


def test_those_that_are_only_followed_leave_slots_to_sessions() -> None:
    world = World(2, 12, slots=6)
    for stage in (1, 2):
        world.join(f"a{stage}", [stage])
        world.join(f"b{stage}", [stage], follows=True)
    requests = [asked(number, tokens=100) for number in range(12)]
    for number, request in enumerate(requests):
        world.at(0.03 * number, lambda request=request: world.client(request) and None)
    world.run(0.4)
    all_texts_are_as_if_undisturbed(world, requests)
    assert counted(world, "unfollowed") > 0


def test_a_follower_that_hangs_costs_nobody_anything() -> None:
    def took(hangs: bool) -> float:
        world = World(3, 13)
        for number in range(1, 4):
            world.join(f"a{number}", [number])
        world.join("fallback", range(1, 4), priority=2, follows=True)
        request = asked(0, tokens=200)
        client = world.client(request)
        if hangs:
            world.at(0.15, lambda: world.hang("fallback", 10.0))
        all_texts_are_as_if_undisturbed(world, [request])
        return client.times[-1]

    assert took(True) == pytest.approx(took(False), rel=0.05)


def test_without_reuse_each_session_computes_all() -> None:
    world = fleet(World(3, 7, limits=LanguageLimits(reuse=False)))
    requests = [asked(number, system=130) for number in range(4)]
    for request in requests:
        world.client(request)
    all_texts_are_as_if_undisturbed(world, requests)
    assert counted(world, "reused_tokens") == 0


def test_a_question_that_comes_late_takes_back_no_token_that_was_told_since() -> None:
    """A new last stage has the text by replay, tells what comes next, and hears an old question."""
    decoder = NumpyDecoder(3, 3, 4)
    core = StageCore(3, 3, "tail", Shape(WIDTH, CONTEXT, 4, 64), lambda stage: [])
    rows = np.random.default_rng(1).normal(size=(9, WIDTH)).astype(np.float32)
    opening = Opening("client", "head", 4, 20, Sampling(), (), (), False)
    ids = [1, 2, 3, 4, 5, 6]

    def told(position: int, end: int, known: int) -> list[int]:
        """The tokens that one step makes it tell."""
        step = TokenStep(
            "s", 0, position, known, tuple(ids[position:end]), rows[position:end], opening
        )
        core.take(Forward("before", [step]), 0.0)
        for run in core.plan(0.0):
            core.computed(run, decoder.run(step.rows[None], run.slot, np.array([position])), 0.0)
        words = core.flush().words.get("head", [])
        return [word.token for word in words if isinstance(word, Token)]

    assert [told(0, 4, 6), told(4, 5, 6)] == [[], []]
    ids += told(5, 6, 6)
    ids += told(6, 7, 7)
    assert len(told(4, 5, 5)) == 1  # what was on its way since before the replay
    assert len(told(7, 8, 8)) == 1


EVENTS = st.lists(
    st.tuples(
        st.floats(0.0, 2.0),
        st.sampled_from(["kill", "hang", "drain"]),
        st.sampled_from(["a1", "b1", "a2", "b2", "a3", "b3", "fallback"]),
    ),
    max_size=6,
)


@given(
    events=EVENTS,
    seed=st.integers(0, 1000),
    loss=st.sampled_from([0.0, 0.0, 0.02]),
    wild=st.sampled_from([0.0, 0.05, 0.3]),
    kept=st.sampled_from([500, 1 << 20]),
    system=st.sampled_from([0, 64, 150]),
    apart=st.floats(0.0, 0.4),
    follows=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_no_schedule_of_deaths_changes_a_token(
    events: list[tuple[float, str, str]],
    seed: int,
    loss: float,
    wild: float,
    kept: int,
    system: int,
    apart: float,
    follows: bool,
) -> None:
    world = World(3, seed, loss=loss, wild=wild, limits=LanguageLimits(kept_bytes=kept))
    fleet(world, follows)
    requests = [asked(number, tokens=30, system=system) for number in range(4)]
    for number, request in enumerate(requests):
        world.at(number * apart, lambda request=request: world.client(request) and None)
    world.run(3 * apart)
    for number, (at, kind, name) in enumerate(events):

        def happen(kind: str = kind, name: str = name, number: int = number) -> None:
            if not world.nodes[name].alive:
                return
            if kind == "hang":
                world.hang(name, 2.5)
                return
            (world.kill if kind == "kill" else world.drain)(name)
            stages, priority = list(world.nodes[name].cores), world.nodes[name].priority
            world.at(
                world.now + 1.0,
                lambda: world.join(f"{name}n{number}", stages, priority, follows) and None,
            )

        world.at(at, happen)
    all_texts_are_as_if_undisturbed(world, requests)
