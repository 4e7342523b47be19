"""Two edges, each with half of a digit, and a join: both views, then one edge is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.camera_mesh import HEIGHT, WIDTH, Sink, red_detector
from support.meshes import READY, add_model, mesh_of
from support.waiting import eventually
from zoo.train_halves import accuracies, to_onnx, train

from nodes.cameras.settings import JoinOptions
from nodes.config import EdgeOptions, NodeConfig
from nodes.up.mesh import local_mesh
from shards.cameras.wish import Wish
from shards.split.split import split
from shards.zoo import digits_heldout
from swarm.errors import InvalidArgument


def test_both_views_fused_are_better_than_each_alone() -> None:
    found = accuracies(train())
    assert found["fused"] > max(found["left"], found["right"]) + 0.05
    assert found["fused, left alone"] > found["left"] - 0.05
    assert found["fused, right alone"] > found["right"] - 0.05


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark  # five seconds on a busy machine
async def test_boxes_of_two_edges_are_told_as_objects_with_from_whom(tmp_path: Path) -> None:
    """Each edge has a camera of its own file; both see one red thing at the same place."""
    image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    image[16:32, 24:40] = (250, 10, 20)
    (tmp_path / "views").mkdir()
    for number in range(60):
        cv2.imwrite(str(tmp_path / f"views/{number:02}.png"), image[..., ::-1])
    corners = [[x, y, 10 * x, 10 * y] for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]
    floor = {"within": 1.0, "left": corners, "right": corners}
    (tmp_path / "floor.json").write_text(json.dumps(floor))
    async with mesh_of() as local:
        room = Sink(local, "room")
        wish = Wish("detect", threshold=0.3, iou=0.1, bake=False, labels=("red",))
        made = await asyncio.to_thread(split, red_detector(), name="red", stages=1, addition=wish)
        await add_model(local, made, "shard-1")
        words = ("--of", "left,right", "--match", str(tmp_path / "floor.json"), "--sink", "room")
        local.start("join", "red", *words, "--within", "60")
        for side in ("left", "right"):
            source = ("--source", str(tmp_path / "views"), "--rate", "20", "--sink", side)
            local.start("edge", "red", *source).wanted = False
        await eventually(lambda: any(not line["missing"] for line in room.lines), "both", READY)
        line = next(line for line in room.lines if not line["missing"])
    assert line["status"] == "OK"
    assert line["spread_ms"] <= 60
    for each in line["objects"]:
        assert each["label"] == "red"
        assert set(each["from"]) == {"left", "right"}
        box = each["from"]["left"]["box"]
        assert each["place"] == pytest.approx([5 * (box[0] + box[2]), 10 * box[3]], abs=1e-3)
    assert len(line["objects"]) == 4  # the cells of the detector that are red


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_moments_of_two_edges_are_fused_and_go_on_with_one_when_the_other_is_killed(
    tmp_path: Path,
) -> None:
    made = train()
    images = digits_heldout()[0]
    sides = {"left": images[..., :4], "right": images[..., 4:]}
    for side, part in sides.items():
        np.savez(tmp_path / f"{side}.npz", image=part)
    heard: list[dict[str, Any]] = []
    async with local_mesh() as local:
        link, subjects = local.mesh.link, local.mesh.subjects
        link.subscribe(subjects.results("room"), lambda m: heard.append(json.loads(m.data)))
        for name in (*sides, "fusion"):
            model = to_onnx(getattr(made, name), name)
            await add_model(local, split(model, name=name, stages=1, profile=False), "shard-1")
        joining = ("--of", "left,right", "--within", "40", "--wait", "150", "--sink", "room")
        local.start("join", "fusion", *joining)
        edges = [
            local.start(
                *("edge", side, "--source", str(tmp_path / f"{side}.npz")),
                *("--rate", "20", "--sink", side),
            )
            for side in sides
        ]

        def whole() -> list[dict[str, Any]]:
            return [line for line in heard if line["status"] == "OK" and not line["missing"]]

        await eventually(lambda: len(whole()) >= 10, "both views are joined", READY)
        for line in whole():
            assert line["spread_ms"] <= 40
            one, other = (line["views"][side] % len(images) for side in sides)
            left = made.left.forward(np.moveaxis(sides["left"][[one]], 1, -1), False)
            right = made.right.forward(np.moveaxis(sides["right"][[other]], 1, -1), False)
            expected = made.fusion.forward(np.concatenate([left, right], axis=1), False)
            assert np.allclose(line["outputs"]["logits"], expected, atol=1e-3)

        killed = edges[0].process
        assert killed is not None
        killed.send_signal(signal.SIGKILL)
        heard.clear()

        def alone() -> list[dict[str, Any]]:
            return [line for line in heard if line["missing"] == ["left"]]

        await eventually(lambda: len(alone()) >= 5, "moments go on with one view", READY)
        assert all(line["status"] == "OK" for line in heard)
        before = len(whole())
        await eventually(lambda: len(whole()) >= before + 5, "the edge is back", READY)


@pytest.mark.parametrize(
    ("role", "of", "sink", "says"),
    [
        ("join", "", "stdout", "need each other"),
        ("edge", "a,b", "stdout", "need each other"),
        ("join", "a,b", "a", "its own results"),
    ],
)
def test_a_join_says_what_it_lacks(role: str, of: str, sink: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        NodeConfig(role, "fusion", edge=EdgeOptions(sink=sink), parts=(JoinOptions(of),))


@pytest.mark.parametrize("of", ["a", "a,a", "a,b c"])
def test_a_join_is_of_two_different_names(of: str) -> None:
    with pytest.raises((InvalidArgument, ValueError)):
        JoinOptions(of)
