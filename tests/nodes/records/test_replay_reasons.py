"""A replay says why a request was not compared as a whole."""

from __future__ import annotations

from typing import Any

from nodes.records.commands.replay import reasons
from nodes.records.recorded import Recorded
from nodes.records.session import Replay, why_incomplete


def request(*stages: int, output: str = "") -> Recorded:
    kept: dict[int, Any] = dict.fromkeys(stages)
    return Recorded("r", "m", "1", 0.0, kept, {"output": output} if output else {})


def test_stages_that_were_not_recorded_and_answers_that_nobody_kept_are_named() -> None:
    assert why_incomplete(request(1, 2, 3, output="abc"), 3) == ""
    assert why_incomplete(request(1, 3, output="abc"), 3) == "stages not recorded: 2"
    assert "only an audit keeps answers" in why_incomplete(request(1, 2, 3), 3)
    assert why_incomplete(request(1, 2), 3) == "stages not recorded: 3"


def test_the_reasons_of_many_replays_are_told_once_each_with_their_count() -> None:
    lacking = Replay("a", 0.0, "1", 0, (), note="stages not recorded: 2")
    told = reasons([lacking, lacking, Replay("b", 0.0, "1", 0, ())])
    assert told[0] == "stages not recorded: 2 (of 2 of 3 requests)"
    assert told[1].startswith("3 of 3 could not be compared at all")
