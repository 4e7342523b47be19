"""Requests as a user of `Mesh.infer` asks them, and the ways that they go."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from fake_stage import INFO, Desk, FakeStage, Message, answer_at_once, is_fast
from real_server import Links
from statuses import a_status

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument
from swarm.subjects import Subjects
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


async def test_an_id_that_a_caller_gives_comes_back_and_nobody_can_guess_the_one_on_the_way(
    real_desk: Desk, server: EmbeddedServer
) -> None:
    """Somebody has ended all requests of that id, and stored its attempts, before it was sent."""
    desk = await real_desk.open(lane=True, fast=False)
    seen: list[str] = []

    def look(stage: FakeStage, message: Message, features: Features) -> None:
        seen.append(features.id)
        answer_at_once(stage, message, features)

    desk.stage.behave = look
    async with swarm.connect(server.url, "test") as mesh:
        mesh.catalog.fixed["m"] = INFO
        x = {"x": np.ones((1, 4), np.float32)}
        results = [await mesh.ask("m", x, 10.0, request_id="order-17") for _ in range(2)]
        plain = await mesh.ask("m", x, 10.0)
    assert [(result.id, result.attempt) for result in results] == [("order-17", 1)] * 2
    assert plain.id == seen[2]
    assert len(set(seen)) == 3
    assert all(re.fullmatch("order-17-[0-9A-Z]{26}", id_) for id_ in seen[:2])


async def test_a_model_that_nodes_hold_and_the_store_has_lost_is_unavailable_and_not_unknown(
    server: EmbeddedServer, links: Links
) -> None:
    """A server that lost its disk, while the nodes of a model live."""
    node = await links.connect(server.url)
    subjects = Subjects("test")

    def say(_: object) -> None:
        document = json.dumps(a_status("shard-1-a", mesh="test")).encode()
        node.publish(subjects.status("shard-1-a"), document)

    node.subscribe(subjects.status_request, say)
    await node.flush()
    x = {"image": np.ones((1, 1, 8, 8), np.float32)}
    async with swarm.connect(server.url, "test") as mesh:
        with pytest.raises(swarm.Unavailable, match="swarm model push"):
            await mesh.infer("digits", x, 10.0)
        with pytest.raises(swarm.NotFound, match="swarm model list"):
            await mesh.infer("absent", x, 10.0)
