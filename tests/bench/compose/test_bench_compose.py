"""`swarm bench compose` runs, and a composition's answers are those by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from bench.compose.compose import FAR, HAND, OURS, ComposePlan, measure, misses
from bench.compose.far import FarLink
from bench.compose.scenes import cascade, faces, hop, views
from bench.rivals.ultraface import NoModel
from shards.compose.composition import from_toml


@pytest.mark.parametrize("make", [hop, cascade, views])
def test_a_scene_declares_what_it_asks(make) -> None:  # type: ignore[no-untyped-def]
    scene = make()
    composition = from_toml(scene.declared)
    assert {part.model for part in composition.asks()} == scene.models.keys()
    assert {spec.name for spec in composition.inputs} == scene.inputs[0].keys()
    assert scene.judged in composition.outputs
    assert len(scene.inputs) == len(scene.labels)


def test_a_scene_whose_model_is_absent_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoModel, match="--ultraface"):
        faces(str(tmp_path / "none.onnx"))


async def test_a_far_link_is_late_in_order_and_counts() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    async with FarLink(port, 0.02) as link, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        sent = np.random.default_rng(0).bytes(5000)
        began = loop.time()
        for start in range(0, len(sent), 100):
            writer.write(sent[start : start + 100])
        assert await reader.readexactly(len(sent)) == sent
        assert loop.time() - began >= 0.04
        assert (link.sent, link.received) == (5000, 5000)
        writer.close()
        await writer.wait_closed()
    server.close()


@pytest.mark.benchmark
async def test_a_cascade_is_measured_beside_the_same_by_hand(tmp_path: Path) -> None:
    plan = ComposePlan(("cascade", "faces"), 10, 2, kills=2, ultraface=str(tmp_path / "none"))
    document = await measure(plan, lambda text: None)
    assert misses(document) == []
    assert "no UltraFace model" in document["skipped"]["faces"]
    scene = document["scenes"]["cascade"]
    assert scene["accuracy"]["differ"] == 0
    assert scene["fit"]["accuracy"] >= 0.975
    for way in (OURS, HAND):
        assert scene["places"][FAR][way]["p50_ms"] >= 10, "the delay, each way"
        assert scene["places"]["bytes_a_request"][way]["sent"] > 256, "an image, at least"
