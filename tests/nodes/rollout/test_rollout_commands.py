"""What `swarm model promote` asks of a rollout."""

from __future__ import annotations

import pytest

from nodes.rollout.commands.rollout import RolloutOptions, asked_plan
from swarm.errors import InvalidArgument


def test_options_of_a_rollout_without_its_canary_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match="--guard is for a rollout: add --canary"):
        asked_plan(RolloutOptions(guard="errors<1%"), "2")
    assert asked_plan(RolloutOptions(), "2") is None
