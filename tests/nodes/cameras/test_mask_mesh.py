"""A camera with a mask on a real mesh: whoever hears every subject sees no masked pixel.

The detector finds red: no trained model is needed. Whoever listens looks for the bytes of a row
that is in the red region of every picture, and for those of a row that is beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytest_asyncio
from support.camera_mesh import HEIGHT, WIDTH, Spy, camera, red_detector, watched_model
from support.meshes import LocalMesh, add_model, mesh_of
from support.oriented import TURNS, write_turned
from support.waiting import eventually

from nodes.up.mesh import push
from nodes.up.supervisor import NodeProcess
from shards.cameras.wish import Wish
from shards.split.split import split

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
SECRET = np.array([[250, 10 + k, 20 + k % 3] for k in range(12)], np.uint8)  # a row, all red
PUBLIC = np.array([[10, 200, 60 + k] for k in range(12)], np.uint8)


def draw_pictures(folder: Path, count: int) -> str:
    """A folder of pictures with a red square that moves, and a green row that does not."""
    random = np.random.default_rng(5)
    folder.mkdir()
    for number in range(count):
        image = random.integers(60, 120, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        left, top = 4 + number % 40, 4 + number // 3 % 24
        image[top : top + 12, left : left + 12] = SECRET
        image[44, 20:32] = PUBLIC
        cv2.imwrite(str(folder / f"{number:04}.png"), image[..., ::-1])
    return str(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched() -> AsyncIterator[LocalMesh]:
    """All messages go by the server, as bytes that anybody can read."""
    async with mesh_of(shm=False) as local:
        result = await asyncio.to_thread(split, watched_model(), name="watched", stages=1)
        await add_model(local, result, "shard-1")
        yield local


@pytest.fixture
def proof(tmp_path: Path) -> str:
    image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    image[8:32, 8:32] = (250, 10, 20)
    cv2.imwrite(str(tmp_path / "proof.png"), image[..., ::-1])
    return str(tmp_path / "proof.png")


async def test_without_a_mask_whoever_listens_reads_the_pixels(
    watched: LocalMesh, tmp_path: Path
) -> None:
    """What the next test would miss, if it looked in the wrong place."""
    spy = Spy(watched)
    edge = camera(watched, "open", draw_pictures(tmp_path / "p", 5))
    await eventually(lambda: not edge.alive and len(spy.lines("open")) == 5)
    assert spy.heard(SECRET) >= 5
    assert spy.heard(PUBLIC) >= 5


async def test_a_turned_video_is_masked_as_it_is_seen(watched: LocalMesh, tmp_path: Path) -> None:
    """By a detector that finds nothing in pictures which lie on their side, or on their head."""
    turn, sink = "mirrored 270", "turned"
    (tmp_path / "red.onnx").write_bytes(red_detector(upright=True))
    shown = []
    for number in range(12):
        image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
        image[:8] = (10, 250, 20)
        left, top = 4 + 3 * number, 10 + number
        image[top : top + 12, left : left + 12] = SECRET
        image[44, 20:32] = PUBLIC
        shown.append(image)
    cv2.imwrite(str(tmp_path / "proof.png"), shown[0][..., ::-1])
    stored = [TURNS[turn].store(image) for image in shown]
    write_turned(tmp_path / "clip.mov", "png", stored, turn)
    spy = Spy(watched)
    flags = ["--mask", str(tmp_path / "red.onnx"), "--mask-proof", str(tmp_path / "proof.png")]
    edge = camera(watched, sink, str(tmp_path / "clip.mov"), *flags)
    await eventually(lambda: not edge.alive and len(spy.lines(sink)) == 12)
    assert {line["status"] for line in spy.lines(sink)} == {"OK"}
    assert spy.heard(PUBLIC) >= 12
    assert spy.heard(SECRET) == 0


async def test_whoever_hears_every_subject_sees_no_masked_pixel(
    watched: LocalMesh, tmp_path: Path, proof: str
) -> None:
    (tmp_path / "red.onnx").write_bytes(red_detector())
    spy = Spy(watched)
    edge = camera(
        watched,
        "masked",
        draw_pictures(tmp_path / "p", 100),
        "--mask",
        str(tmp_path / "red.onnx"),
        "--mask-proof",
        proof,
    )
    await eventually(lambda: not edge.alive and len(spy.lines("masked")) == 100)
    assert {line["status"] for line in spy.lines("masked")} == {"OK"}
    assert spy.heard(PUBLIC) >= 50
    assert spy.heard(SECRET) == 0
    halves = [spy.heard(SECRET[:2]), spy.heard(SECRET[5:7]), spy.heard(SECRET[-2:])]
    assert halves == [0, 0, 0]


async def test_no_frame_leaves_before_the_mesh_has_the_detector(
    watched: LocalMesh, tmp_path: Path, proof: str
) -> None:
    """The detector is a model of the mesh, which no node serves: the edge runs both its stages."""
    spy = Spy(watched)
    edge = camera(
        watched,
        "waits",
        draw_pictures(tmp_path / "p", 20),
        "--mask",
        "red",
        "--mask-proof",
        proof,
    )

    def is_ready() -> bool:
        status = watched.status_of(edge)
        return status is not None and status["state"] == "ready"

    await eventually(is_ready)
    await asyncio.sleep(1.0)  # nothing may come: there is no event to wait for
    assert spy.lines("waits") == []
    wish = Wish("detect", threshold=0.3, bake=False)
    made = await asyncio.to_thread(split, red_detector(), name="red", stages=2, addition=wish)
    await push(watched, made.manifest.to_json(), made.files)
    await eventually(lambda: not edge.alive and len(spy.lines("waits")) == 20)
    assert {line["status"] for line in spy.lines("waits")} == {"OK"}
    assert spy.heard(PUBLIC) >= 10
    assert spy.heard(SECRET) == 0


async def refused(edge: NodeProcess, code: int = 1) -> str:
    """What a node says that ends at once; 2 is the code of a setting that no restart mends."""
    await eventually(lambda: not edge.alive)
    assert edge.process is not None
    assert edge.process.returncode == code
    assert edge.log_path is not None
    return edge.log_path.read_text()


async def test_a_detector_that_finds_nothing_ends_the_node_before_a_frame_leaves(
    watched: LocalMesh, tmp_path: Path, proof: str
) -> None:
    (tmp_path / "blind.onnx").write_bytes(red_detector(bias=-100.0))
    spy = Spy(watched)
    folder = draw_pictures(tmp_path / "p", 5)
    blind = str(tmp_path / "blind.onnx")
    edge = camera(watched, "blind", folder, "--mask", blind, "--mask-proof", proof)
    assert "does not find anything" in await refused(edge)
    assert spy.lines("blind") == []
    assert spy.heard(PUBLIC) == spy.heard(SECRET) == 0


async def test_a_source_that_goes_to_the_model_as_it_is_cannot_be_masked(
    watched: LocalMesh,
) -> None:
    edge = camera(watched, "digits", "digits", "--mask", "red.onnx")
    assert "--mask masks cameras alone" in await refused(edge, code=2)
