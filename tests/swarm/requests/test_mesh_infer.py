"""Requests as a user of `Mesh.infer` asks them, and the ways that they go."""

from __future__ import annotations

import numpy as np
import pytest
from fake_stage import INFO, Desk, FakeStage, Message, answer_at_once, is_fast

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument
from swarm.wire.messages import Features

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("delivery", "fast"), [("durable", False), ("fast", True), ("core", True)])
async def test_a_request_goes_by_lanes_or_in_fast_mode_whose_old_name_is_core(
    real_desk: Desk, server: EmbeddedServer, delivery: str, fast: bool
) -> None:
    desk = await real_desk.open(fast=True)
    ways: list[bool] = []

    def look(stage: FakeStage, message: Message, features: Features) -> None:
        ways.append(is_fast(message))
        answer_at_once(stage, message, features)

    desk.stage.behave = look
    async with swarm.connect(server.url, "test") as mesh:
        mesh.catalog.fixed["m"] = INFO
        x = np.full((1, 4), 21, np.float32)
        result = await mesh.infer("m", {"x": x}, 10.0, delivery=delivery)
    np.testing.assert_array_equal(result.outputs["x"], 2 * x)
    assert ways[0] == fast


async def test_a_request_is_durable_unless_it_says_otherwise(
    real_desk: Desk, server: EmbeddedServer
) -> None:
    desk = await real_desk.open(lane=True, fast=False)
    async with swarm.connect(server.url, "test") as mesh:
        mesh.catalog.fixed["m"] = INFO
        result = await mesh.infer("m", {"x": np.ones((1, 4), np.float32)}, 10.0)
    assert (result.attempt, desk.stage.attempts) == (1, [1])


async def test_an_unknown_delivery_is_refused_and_the_two_are_named(server: EmbeddedServer) -> None:
    async with swarm.connect(server.url, "test") as mesh:
        mesh.catalog.fixed["m"] = INFO
        with pytest.raises(InvalidArgument, match="delivery 'slow': it is durable or fast"):
            await mesh.infer("m", {"x": np.ones((1, 4), np.float32)}, 10.0, delivery="slow")
