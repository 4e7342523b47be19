"""A camera with a gate and a guard on a real mesh: what is skipped, held back and reviewed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytest_asyncio
from support.camera_mesh import HEIGHT, WIDTH, Spy, camera, watched_model
from support.meshes import LocalMesh, add_model, mesh_of
from support.waiting import eventually

from shards.split.split import split

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
WARM_UP = 16  # frames, five a second
USUAL, STRANGE = 120, 45
GUARD = ("--guard", "ood", "--guard-warm-up", str(WARM_UP))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched() -> AsyncIterator[LocalMesh]:
    async with mesh_of(shm=False) as local:
        result = await asyncio.to_thread(
            split, watched_model(), name="watched", stages=1, edge_layers=4
        )
        await add_model(local, result, "shard-1")
        yield local


def write_pictures(folder: Path, images: list[np.ndarray]) -> str:
    folder.mkdir()
    for number, image in enumerate(images):
        cv2.imwrite(str(folder / f"{number:04}.png"), image[..., ::-1])
    return str(folder)


def room(number: int) -> np.ndarray:
    """A room whose light, and what stands in it, differ a little from picture to picture."""
    random = np.random.default_rng(number)
    image = np.full((HEIGHT, WIDTH, 3), (90, 100, 110), np.float64) * random.uniform(0.9, 1.1)
    left, top = random.integers(0, 40), random.integers(0, 30)
    image[top : top + 12, left : left + 12] += random.uniform(-30, 30, 3)
    return np.clip(image + random.normal(0, 2, image.shape), 0, 255).astype(np.uint8)


def strange(number: int) -> np.ndarray:
    random = np.random.default_rng(number)
    return random.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)


def usual_then_strange(folder: Path) -> str:
    rooms = [room(number) for number in range(USUAL)]
    return write_pictures(folder, rooms + [strange(number) for number in range(STRANGE)])


async def test_a_still_camera_is_computed_seldom_and_each_repeat_says_so(
    watched: LocalMesh, tmp_path: Path
) -> None:
    still, other = room(1), strange(2)
    folder = write_pictures(tmp_path / "p", [still] * 30 + [other] * 30)
    spy = Spy(watched)
    edge = camera(watched, "gated", folder, "--gate", "ssim-min:0.3", "--gate-oldest", "60000")
    await eventually(lambda: not edge.alive and len(spy.lines("gated")) == 60)
    lines = sorted(spy.lines("gated"), key=lambda line: line["sequence"])
    computed = [line["sequence"] for line in lines if "repeats" not in line]
    assert computed == [0, 11, 22, 30, 41, 52]
    for line in lines:
        if "repeats" in line:
            of = lines[line["repeats"]]
            assert line["skipped"] == line["sequence"] - line["repeats"] <= 10
            assert line["outputs"] == of["outputs"]
            assert line["age_ms"] > of["age_ms"]
    assert len(spy.of("features")) == len(computed)


async def test_strange_pictures_are_held_back_from_the_first_one_on(
    watched: LocalMesh, tmp_path: Path
) -> None:
    spy = Spy(watched)
    folder = usual_then_strange(tmp_path / "p")
    edge = camera(watched, "held", folder, *GUARD, "--guard-action", "drop", rate=30)
    await eventually(lambda: not edge.alive)
    await watched.mesh.link.flush()
    lines = sorted(spy.lines("held"), key=lambda line: line["sequence"])
    usual = [line for line in lines if line["sequence"] < USUAL]
    passed = [line for line in usual if line["status"] == "OK"]
    assert len(passed) > 0.8 * len(usual)  # so few frames of a warm-up know the room a little
    assert {line["status"] for line in lines[len(usual) :]} == {"PERMISSION_DENIED"}
    assert lines[0]["guard"]["state"] == "warming"
    assert lines[-1]["guard"]["state"] == "alarmed"
    assert len(spy.of("features")) == len(passed)


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_a_person_is_asked_for_a_picture_that_is_strange_and_what_was_learned_is_kept(
    watched: LocalMesh, tmp_path: Path
) -> None:
    spy = Spy(watched)
    kept = [
        "--guard-file",
        str(tmp_path / "guard"),
        "--identity",
        str(tmp_path / "identity"),
        "--guard-action",
        "review",
    ]
    edge = camera(watched, "asked", usual_then_strange(tmp_path / "p"), *GUARD, *kept, rate=30)
    await eventually(lambda: not edge.alive)
    await watched.mesh.link.flush()
    assert {line["status"] for line in spy.lines("asked")} == {"OK"}
    reviews = [json.loads(data) for data in spy.of("review")]
    assert len(reviews) <= 1 + (USUAL + STRANGE) / 30 + 1  # once a second
    late = [review for review in reviews if review["sequence"] >= USUAL]
    assert late
    assert late[-1]["distance"] > 1
    jpeg = np.frombuffer(base64.b64decode(late[-1]["jpeg"]), np.uint8)
    shown = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)
    assert shown is not None
    assert shown.shape == (HEIGHT, WIDTH, 3)
    assert b"Exif" not in jpeg.tobytes()

    spy = Spy(watched)
    folder = write_pictures(tmp_path / "again", [strange(number) for number in range(5)])
    edge = camera(watched, "again", folder, *GUARD, *kept)
    await eventually(lambda: not edge.alive and len(spy.lines("again")) == 5)
    assert spy.lines("again")[-1]["guard"]["state"] == "alarmed"
