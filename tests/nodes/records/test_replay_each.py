"""One recorded request of eight cannot be run again: its note says so, and the others are run."""

from __future__ import annotations

import pytest

from nodes.records.recorded import Recorded
from nodes.records.session import Replay, replay_each
from shards.errors import InputError, RunError, ShardsError
from swarm.errors import InvalidArgument, NotFound, SwarmError, Unavailable

BAD: list[SwarmError | ShardsError] = [
    InvalidArgument("this is no picture"),
    InputError("x", "FP32[1,4]", "FP32[1,5]"),
    RunError("Gather: index out of range"),
    NotFound("its question was not recorded"),
]


def recorded(number: int) -> Recorded:
    return Recorded(f"r{number}", "m", "1", float(number), {})


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("error", BAD, ids=lambda error: type(error).__name__)
async def test_a_request_that_cannot_be_run_again_ends_no_other_ones_replay(
    error: Exception, place: int
) -> None:
    async def one(each: Recorded) -> Replay:
        if each.id == f"r{place}":
            raise error
        return Replay(each.id, each.at, "2", 0, ())

    replays = await replay_each([recorded(number) for number in range(8)], one, "2")
    assert [each.id for each in replays] == [f"r{number}" for number in range(8)]
    assert [each.note for each in replays] == [
        str(error) if number == place else "" for number in range(8)
    ]
    assert {each.version for each in replays} == {"2"}


@pytest.mark.parametrize("error", [Unavailable("no server"), NotFound("not recorded")])
async def test_what_ends_the_command_is_raised(error: Exception) -> None:
    async def one(each: Recorded) -> Replay:
        raise error

    with pytest.raises(type(error)):
        await replay_each([recorded(1)], one)
