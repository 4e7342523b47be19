"""How many messages a lane holds: as the longest budget needs, bounded in messages and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lane_tools import SUBJECTS, Bench, Sender
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import ResourceExhausted
from swarm.link import Link, jetstream
from swarm.model import ModelInfo, Spec, Stage
from swarm.subjects import api
from swarm.transport.lane import Depth, LaneOptions, ensure_lanes, follow_depth
from swarm.transport.lane.depth import (
    FEWEST_LARGE,
    LANE_BYTES,
    LEAST_DEPTH,
    MESSAGE_ROOM,
    MOST_DEPTH,
    SHARED_BYTES,
    WINDOW,
    Budgets,
    changed_depth,
    depth_for,
)

USUAL = 5.0  # seconds


def model(compute_ms: float, elements: int = 16, stages: int = 3) -> ModelInfo:
    """Stages that take so long, and receive so many numbers of 4 bytes."""
    specs = (Spec("x", "FP32", (1, elements)),)
    made = tuple(Stage(k, specs, specs, compute_ms) for k in range(1, stages + 1))
    return ModelInfo("m", "1", specs, specs, made)


def test_a_lane_holds_the_work_of_the_longest_budget() -> None:
    assert depth_for(model(10.0), 5.0).messages == 300
    assert depth_for(model(10.0), 20.0).messages == 1200
    assert depth_for(model(10.0), 0.1).messages == 25, "a quarter of a second at least"


def test_a_lane_holds_no_more_bytes_however_long_the_budget() -> None:
    features = 1_600_000
    deep = depth_for(model(1.0, features // 4), 60.0)
    assert 100 < deep.messages < 4096
    assert deep.messages * features <= LANE_BYTES
    assert max(deep.stage_bytes) <= LANE_BYTES


@given(
    st.floats(0, 1e5),
    st.integers(1, 1 << 24),
    st.integers(1, 9),
    st.floats(0, 600, exclude_min=True),
)
def test_every_depth_is_bounded_in_messages_and_bytes(
    compute_ms: float, elements: int, stages: int, budget: float
) -> None:
    info = model(compute_ms, elements, stages)
    depth = depth_for(info, budget)
    assert FEWEST_LARGE <= depth.messages <= MOST_DEPTH
    size = 4 * elements
    assert depth.messages >= LEAST_DEPTH or depth.messages * size * 2 >= min(LANE_BYTES, 4 * size)
    assert depth.messages == FEWEST_LARGE or depth.messages * size <= LANE_BYTES
    assert len(depth.stage_bytes) == stages
    assert min(depth.stage_bytes) >= depth.messages * size


@given(st.lists(st.integers(1, 1 << 24), min_size=1, max_size=9))
def test_stages_set_aside_what_one_stream_of_all_would_or_few_bytes_more(sizes: list[int]) -> None:
    """And the largest message that such a stream takes fits, as far as it is not very large."""
    stages = [
        Stage(number, (Spec("x", "FP32", (size,)),), (), 1000.0)
        for number, size in enumerate(sizes, 1)
    ]
    info = ModelInfo("m", "1", (), (), tuple(stages))
    messages, stage_bytes = depth_for(info, 1.0)
    together = messages * sum(MESSAGE_ROOM + 4 * size for size in sizes)
    assert sum(stage_bytes) <= together + (len(sizes) - 1) * SHARED_BYTES
    assert min(stage_bytes) >= min(SHARED_BYTES, together)


def test_small_differences_change_no_lane_and_no_message_is_pushed_out_by_a_shallower_one() -> None:
    assert not changed_depth(300, 400, held=0)
    assert changed_depth(300, 1200, held=300)
    assert changed_depth(300, 100, held=49)
    assert not changed_depth(300, 100, held=50)


def test_a_budget_counts_as_in_use_for_a_minute_and_no_more_than_two() -> None:
    budgets = Budgets(USUAL, 0.0)
    budgets.seen(20.0, 1.0)
    assert budgets.longest == 20.0
    seen = []
    for now in range(5, 200, 5):
        budgets.seen(0.1, float(now))
        seen.append((now, budgets.longest))
    still = [now for now, longest in seen if longest == 20.0]
    assert WINDOW - 5 <= max(still) <= 2 * WINDOW
    assert seen[-1][1] == 0.1


def test_where_nothing_is_asked_the_usual_budget_counts() -> None:
    budgets = Budgets(USUAL, 0.0)
    for now in range(5, 500, 5):
        budgets.seen(0.0, float(now))
        assert budgets.longest == USUAL


def test_a_node_that_has_just_started_believes_in_the_usual_budget_until_it_has_seen_enough() -> (
    None
):
    budgets = Budgets(USUAL, 0.0)
    budgets.seen(0.1, 5.0)
    assert budgets.longest == USUAL


# --- on a real server ---------------------------------------------------------------------


async def limits(link: Link, stage: int = 1) -> tuple[int, int]:
    """Messages a lane, bytes of the stage's lanes: as the server has them."""
    stream = SUBJECTS.stream("m", "1", stage)
    config = (await jetstream.call(link, api("STREAM.INFO", stream)))["config"]
    return int(config["max_msgs_per_subject"]), int(config["max_bytes"])


@pytest.mark.integration
async def test_lanes_become_deeper_and_shallower_while_they_serve(bench: Bench) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    assert await follow_depth(lane.link, SUBJECTS, "m", "1", Depth(64, (1 << 20,)))
    assert await limits(lane.link) == (64, 1 << 20)
    for number in range(40):
        sender.send(str(number))
    await eventually(lambda: sender.acked(40))
    assert [calls[0][0] for calls in sender.outcomes.values()] == [None] * 40
    assert not await follow_depth(lane.link, SUBJECTS, "m", "1", Depth(16, (1 << 20,)))
    assert await sender.stored() == 40, "a shallower lane would have lost 24 messages"
    got[0].ack()
    await bench.end(lane)
    await bench.lane(ack=True)
    assert await sender.emptied()
    assert await follow_depth(lane.link, SUBJECTS, "m", "1", Depth(16, (1 << 20,)))
    assert await limits(lane.link) == (16, 1 << 20)


@pytest.mark.integration
async def test_a_lane_that_is_full_of_bytes_refuses_as_one_full_of_messages(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    await ensure_lanes(link, SUBJECTS, "m", "1", 1, LaneOptions(1000, (100_000,)))
    sender = Sender(link)
    for number in range(20):
        sender.send(str(number), bytes(10_000))
    await eventually(lambda: sender.acked(20))
    errors = [calls[0][0] for calls in sender.outcomes.values()]
    assert errors[:9] == [None] * 9
    assert all(isinstance(error, ResourceExhausted) for error in errors[10:])


@pytest.mark.integration
async def test_where_the_server_has_few_bytes_to_set_aside_lanes_hold_less_and_keep_a_bound(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    room = 2 << 30  # of an embedded server's memory
    wanted = LaneOptions(100, (room, room, 1 << 20))
    await ensure_lanes(link, SUBJECTS, "m", "1", 3, wanted)
    made = [await limits(link, stage) for stage in (1, 2, 3)]
    assert [depth for depth, _ in made] == [100, 100, 100]
    assert [most for _, most in made] == [room // 4, room // 4, 1 << 18], "all alike"
    assert await follow_depth(link, SUBJECTS, "m", "1", Depth(1000, (room, room, 1 << 20)))
    grown = [await limits(link, stage) for stage in (1, 2, 3)]
    assert all(depth == 1000 and most > 0 for depth, most in grown)
    assert sum(most for _, most in grown) <= room


@pytest.mark.integration
async def test_a_version_without_room_for_a_few_messages_is_refused_with_what_to_do(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    with pytest.raises(ResourceExhausted, match="swarm model gc"):
        await ensure_lanes(link, SUBJECTS, "m", "1", 1, LaneOptions(4, (1 << 50,)))
