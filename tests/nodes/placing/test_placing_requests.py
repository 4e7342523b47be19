"""Each request goes where it is answered first, by ways that let nothing leave that must stay."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import KB, Conditions, World, model, world

from nodes.placing.choice import EdgeWays, PlacingFacts
from nodes.placing.ways import (
    CORE,
    CORE_JPEG,
    EDGE,
    NOWHERE,
    SPLIT,
    FeaturePrivacy,
    checked_mode,
    jpeg_quality,
    stages_held,
    ways_of,
)
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo, Spec, Stage

EVERYTHING = FeaturePrivacy(picture=True)
SMALL_CUT = model((230 * KB, 38 * KB, 14 * KB), out=10)

conditions = st.builds(
    Conditions,
    mbit=st.sampled_from((5.0, 20.0, 100.0)),
    round_trip=st.sampled_from((0.002, 0.010, 0.050)),
    local=st.sampled_from((0.002, 0.005, 0.020)),
    remote=st.sampled_from((0.0005, 0.001, 0.005)),
)
models = st.builds(
    model,
    st.lists(st.sampled_from((2 * KB, 14 * KB, 57 * KB, 230 * KB)), min_size=1, max_size=4).map(
        tuple
    ),
    st.booleans(),
    st.sampled_from((10, 26 * KB)),
)


def held(info: ModelInfo, count: int) -> range:
    """The first stages of a model, `count` beside stage 0."""
    return range(min(count, info.last) + 1)


def settled(of: World, at: Conditions, seconds: float = 30.0) -> str:
    """The way that is taken after a while."""
    end = of.now + seconds
    while of.now < end:
        choice, _ = of.ask(at, 0.1)
    return choice.way.name


def test_the_ways_are_those_of_the_stages_at_hand() -> None:
    names = [way.name for way in ways_of(SMALL_CUT, {1, 2, 3})]
    assert names == [CORE, "split@2", "split@3", EDGE]
    assert [way.name for way in ways_of(SMALL_CUT, {1})] == [CORE, "split@2"]
    assert [way.name for way in ways_of(SMALL_CUT, {2, 3})] == [CORE]
    with_edge = model((2 * KB, KB), edge=True)
    assert [way.name for way in ways_of(with_edge, {0})] == ["split@1"]
    assert ways_of(with_edge, {1}) == ()


PICTURE = Spec("t0", "UINT8", (1, 240, 320, 3))
OUT = (Spec("out", "FP32", (1, 10)),)
SEES = ModelInfo(
    "m",
    "1",
    (PICTURE,),
    OUT,
    (Stage(1, (PICTURE,), OUT, 1.0),),
    task={"preprocess": {"input": "t0"}},
)


def test_a_picture_may_go_as_jpeg_where_it_may_leave_and_all_nodes_decode_it() -> None:
    ways = ways_of(SEES, {1}, 85)
    assert [way.name for way in ways] == [CORE_JPEG, CORE, EDGE]
    assert CORE_JPEG not in [way.name for way in ways_of(SEES, {1})], "no quality is given"
    assert ways[0].sent < ways[1].sent / 5
    secret = EdgeWays(ways, 1, {1: 0.1}, privacy=FeaturePrivacy(picture=False))
    assert [way.name for way in secret.ways] == [EDGE]
    slow = {"round_trip": 0.01, "rate": 2.5e6, "remote": {1: 0.002}}
    for decode, taken in ((True, CORE_JPEG), (False, CORE)):
        placement = EdgeWays(ways, 1, {1: 0.5}, privacy=EVERYTHING)
        choice = placement.choose(PlacingFacts(1.0, pictures=decode, **slow), 0.0)
        assert choice is not None
        assert choice.way.name == taken
    only = EdgeWays(ways, 1, {}, CORE_JPEG, EVERYTHING)
    assert [way.name for way in only.ways] == [CORE_JPEG]


@pytest.mark.parametrize("send", ["jpeg", "jpeg:0", "jpeg:101", "png", "jpeg:85 "])
def test_how_a_picture_is_sent_is_checked(send: str) -> None:
    assert (jpeg_quality("raw"), jpeg_quality("jpeg:100")) == (0, 100)
    with pytest.raises(InvalidArgument, match="--send"):
        jpeg_quality(send)


def test_what_carries_the_input_on_shows_it() -> None:
    info = model((KB, KB, KB))
    carrying = info.stages[1].__class__(2, (*info.inputs, *info.stages[1].receives), (), 1.0)
    ways = ways_of(
        ModelInfo("m", "1", info.inputs, info.outputs, (info.stages[0], carrying)), {1, 2}
    )
    assert [way.shows_input for way in ways] == [True, True, False]


def test_a_slow_link_is_left_and_a_fast_one_is_taken_again() -> None:
    of = world(SMALL_CUT, range(4), EVERYTHING)
    fast = Conditions(100, 0.002, local=0.020, remote=0.001)
    assert settled(of, fast) in (CORE, "split@2")
    assert settled(of, Conditions(0.5, 0.002, local=0.020, remote=0.001)) == EDGE
    assert settled(of, fast, 90.0) in (CORE, "split@2")


def test_without_a_connection_all_is_computed_here() -> None:
    placement = world(SMALL_CUT, range(4), EVERYTHING).placement
    choice = placement.choose(
        PlacingFacts(1.0, connected=False, remote={1: 0.0, 2: 0.0, 3: 0.0}), 0.0
    )
    assert choice is not None
    assert choice.way.entry == NOWHERE
    assert "no connection" in choice.why


def test_a_stage_that_no_node_serves_is_not_waited_for() -> None:
    placement = world(SMALL_CUT, range(4), EVERYTHING).placement
    choice = placement.choose(PlacingFacts(1.0, remote={1: 0.0, 2: 0.0}), 0.0)
    assert choice is not None
    assert choice.way.name == EDGE
    alone = EdgeWays(ways_of(SMALL_CUT, {1}), 3, {1: 0.001})
    asked = alone.choose(PlacingFacts(1.0), 0.0)  # gossip may not have come yet
    assert asked is not None
    assert asked.predicted == inf


def test_work_that_waits_here_sends_the_next_requests_away() -> None:
    placement = EdgeWays(ways_of(SMALL_CUT, {1, 2, 3}), 3, dict.fromkeys((1, 2, 3), 0.005))
    remote = dict.fromkeys((1, 2, 3), 0.005)
    first = placement.choose(PlacingFacts(1.0, round_trip=0.005, remote=remote), 0.0)
    second = placement.choose(
        PlacingFacts(1.0, round_trip=0.005, local_wait=0.2, remote=remote), 1.0
    )
    assert first is not None
    assert second is not None
    assert (first.way.name, second.way.name) == (EDGE, CORE)


def test_a_way_that_fails_is_left_for_one_that_answers() -> None:
    of = world(SMALL_CUT, range(4), EVERYTHING)
    fast = Conditions(100, 0.002, local=0.020, remote=0.001)
    settled(of, fast)
    facts = PlacingFacts(0.5, round_trip=0.002, remote=dict.fromkeys((1, 2, 3), 0.001))
    for second in range(1, 20):
        choice = of.placement.choose(facts, of.now + second)
        assert choice is not None
        if choice.way.name == EDGE:
            break
        of.placement.ended(choice.way, facts, 0.5, None, of.now + second, failed=True)
    assert choice.way.name == EDGE
    assert second <= 4


def test_a_small_gain_is_no_reason_to_change() -> None:
    of = world(SMALL_CUT, range(4), EVERYTHING)
    of.noise = 0.02
    way = settled(of, Conditions(20, 0.002, local=0.0075, remote=0.001))
    changes = 0
    for _ in range(500):
        before, (choice, _) = way, of.ask(Conditions(20, 0.002, local=0.0075, remote=0.001), 0.1)
        way = choice.way.name
        changes += way != before
    assert changes <= 5


def test_a_mode_takes_ways_of_its_kind_alone() -> None:
    for mode, names in (
        (EDGE, {EDGE}),
        (SPLIT, {"split@2", "split@3"}),
        (CORE, {CORE}),
        ("split@3", {"split@3"}),
    ):
        placement = EdgeWays(ways_of(SMALL_CUT, {1, 2, 3}), 3, {}, mode)
        assert {way.name for way in placement.ways} == names
    assert EdgeWays(ways_of(SMALL_CUT, {1}), 3, {}, EDGE).choose(PlacingFacts(1.0), 0.0) is None


@given(
    models, st.integers(0, 5), st.booleans(), st.integers(1, 5), st.lists(conditions, max_size=3)
)
@settings(max_examples=60, deadline=None)
def test_no_request_and_no_probe_takes_a_way_that_privacy_forbids(
    info: ModelInfo, count: int, picture: bool, from_stage: int, phases: list[Conditions]
) -> None:
    of = world(info, held(info, count), FeaturePrivacy(picture, from_stage))
    inputs = {spec.name for spec in info.inputs}
    for at in phases if of.placement.ways else []:
        for _ in range(150):
            choice, _ = of.ask(at, 0.2)
            for way in (choice.way, choice.probe):
                if way is None or way.entry == NOWHERE:
                    continue
                left = {spec.name for spec in info.stages[way.entry - 1].receives}
                assert picture or not left & inputs
                assert left & inputs or way.entry >= from_stage


@given(models, st.integers(0, 5), st.lists(conditions, min_size=1, max_size=2), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_once_settled_no_fixed_way_is_faster_by_a_tenth_over_a_minute(
    info: ModelInfo, count: int, phases: list[Conditions], seed: int
) -> None:
    of = world(info, held(info, count), EVERYTHING, seed)
    for at in phases:
        begin = of.now
        times = []
        while of.now < begin + 180:
            _, seconds = of.ask(at, 0.1)
            if of.now > begin + 120:
                times.append(seconds)
        assert sum(times) / len(times) <= 1.1 * of.best(at)


@given(models, conditions, st.floats(0.01, 0.2))
@settings(max_examples=40, deadline=None)
def test_probes_are_few(info: ModelInfo, at: Conditions, budget: float) -> None:
    of = world(info, held(info, 5), EVERYTHING)
    of.budget = budget
    for asked in range(1, 400):
        choice, _ = of.ask(at, 0.1)
        assert of.placement.probes <= 0.02 * asked
        if choice.probe is not None:
            assert choice.probe is not choice.way
    assert sum(of.placement.taken.values()) == asked


def test_a_way_far_beyond_the_budget_is_not_tried() -> None:
    placement = EdgeWays(ways_of(SMALL_CUT, {1, 2, 3}), 3, dict.fromkeys((1, 2, 3), 0.001))
    facts = PlacingFacts(0.05, round_trip=0.01, rate=1e5, remote=dict.fromkeys((1, 2, 3), 0.001))
    for second in range(500):
        choice = placement.choose(facts, float(second))
        assert choice is not None
        assert choice.probe is None  # 0.14 s at least


def test_a_mode_holds_the_stages_that_its_ways_need() -> None:
    assert list(stages_held("auto", [1, 2, 3])) == [1, 2, 3]
    assert list(stages_held("split", [1, 2, 3])) == [1, 2]
    assert list(stages_held("split@2", [1, 2, 3])) == [1]
    assert list(stages_held("core", [1, 2, 3])) == list(stages_held("off", [1, 2, 3])) == []
    with pytest.raises(InvalidArgument, match="--placement 'split@0'"):
        checked_mode("split@0")


def test_probes_are_copies_of_few_requests() -> None:
    of = world(SMALL_CUT, range(4), EVERYTHING)
    at = Conditions(20, 0.010, local=0.005, remote=0.001)
    probed = [choice.probe.name for _ in range(500) if (choice := of.ask(at, 0.1)[0]).probe]
    assert 8 <= len(probed) <= 10
    assert len(set(probed)) == 3  # every other way in turn


@pytest.mark.parametrize("rate", [0.0, 1e9])
def test_a_first_request_goes_by_what_the_link_knows(rate: float) -> None:
    placement = EdgeWays(ways_of(SMALL_CUT, {1, 2, 3}), 3, dict.fromkeys((1, 2, 3), 0.050))
    facts = PlacingFacts(5.0, round_trip=0.01, rate=rate, remote=dict.fromkeys((1, 2, 3), 0.001))
    choice = placement.choose(facts, 0.0)
    assert choice is not None
    assert choice.way.name == CORE
    slow = EdgeWays(ways_of(SMALL_CUT, {1, 2, 3}), 3, dict.fromkeys((1, 2, 3), 0.050))
    choice = slow.choose(
        PlacingFacts(5.0, round_trip=0.01, rate=1e5, remote=dict.fromkeys((1, 2, 3), 0.001)), 0.0
    )
    assert choice is not None
    assert choice.way.name == EDGE
