"""Standby nodes share out the stages that have lost their primaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodes.life.config import NodeConfig
from nodes.life.warm_pool import StageCover, stages_to_take
from swarm.priorities import STANDBY

WHOLE, LOST, BARE = StageCover(1, 1), StageCover(0, 1), StageCover(0, 0)


def test_while_nothing_lacks_a_standby_stands_by_for_every_stage() -> None:
    assert stages_to_take({1: WHOLE, 2: WHOLE, 3: WHOLE}, ["a"], "a") == {1, 2, 3}


def test_a_lost_stage_is_taken_and_the_others_are_left() -> None:
    assert stages_to_take({1: WHOLE, 2: LOST, 3: WHOLE}, ["a"], "a") == {2}


def test_the_stage_with_the_longest_queue_is_taken_and_kept() -> None:
    cover = {1: LOST, 2: StageCover(0, 1, waiting=9), 3: WHOLE}
    assert stages_to_take(cover, ["a"], "a") == {2}
    assert stages_to_take(cover, ["a"], "a", taken=1) == {1}
    assert stages_to_take(cover, ["a"], "a", taken=3) == {2}, "stage 3 lacks nothing any more"


def test_two_standbys_take_different_stages() -> None:
    cover = {1: LOST, 2: LOST, 3: WHOLE}
    taken = [stages_to_take(cover, ["b", "a"], me) for me in ("a", "b")]
    assert taken == [{1}, {2}]


def test_a_stage_that_nobody_else_has_is_never_left() -> None:
    assert stages_to_take({1: BARE, 2: BARE, 3: LOST}, ["a"], "a", taken=3) == {1, 2, 3}


covers = st.dictionaries(
    st.integers(1, 8),
    st.builds(StageCover, st.integers(0, 2), st.integers(0, 2), st.integers(0, 50)),
    min_size=1,
)


@given(covers, st.sets(st.sampled_from("abcd"), min_size=1))
def test_whatever_is_lost_every_stage_has_somebody(
    cover: dict[int, StageCover], standbys: set[str]
) -> None:
    for me in standbys:
        work = stages_to_take(cover, standbys, me)
        assert work
        assert work <= set(cover)
        for stage, present in cover.items():
            assert stage in work or present.primaries or present.others


def test_a_standby_goes_before_fallbacks_and_answers_requests() -> None:
    config = NodeConfig("standby", "digits")
    assert config.priority == STANDBY
    assert config.answers_requests
