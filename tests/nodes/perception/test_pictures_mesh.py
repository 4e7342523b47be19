"""Pictures as requests on a real mesh: the node of the first stage decodes and prepares them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytest_asyncio
from support.camera_mesh import HEIGHT, WIDTH, red_detector
from support.meshes import LocalMesh, all_ready, mesh_of
from support.waiting import eventually

import swarm
from shards.split.split import split
from shards.task import Task, decode_picture
from shards.task.wish import Wish

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
INPUT = "input"


def picture_of(seed: int, kind: str = ".jpg", size: tuple[int, int] = (90, 110)) -> bytes:
    """A file with a red square somewhere."""
    random = np.random.default_rng(seed)
    image = random.integers(60, 120, (*size, 3)).astype(np.uint8)
    top, left = (int(random.integers(0, side - 40)) for side in size)
    image[top : top + 40, left : left + 40] = (10, 20, 250)
    encoded, data = cv2.imencode(kind, cv2.GaussianBlur(image, (0, 0), 1))
    assert encoded
    return data.tobytes()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reds() -> AsyncIterator[LocalMesh]:
    """A detector outside of whose graph pixels are made FP32, in two stages with a fallback."""
    wish = Wish("detect", threshold=0.3, bake=False)
    result = await asyncio.to_thread(split, red_detector(), name="red", stages=2, task=wish)
    async with mesh_of(result, "shard-1", "shard-2", "fallback") as local:
        yield local


async def prepared(mesh: swarm.Mesh, data: bytes) -> dict[str, np.ndarray]:
    """What an edge makes of the same file."""
    return Task.of((await mesh.model("red")).task).prepare(decode_picture(data))


@pytest.mark.parametrize("kind", [".jpg", ".png"])
@pytest.mark.parametrize("size", [(90, 110), (HEIGHT, WIDTH)])
async def test_a_picture_has_the_answer_of_its_decoded_and_prepared_tensor_to_the_bit(
    reds: LocalMesh, kind: str, size: tuple[int, int]
) -> None:
    data = picture_of(3, kind, size)
    sent = await reds.mesh.infer("red", {INPUT: swarm.Picture(data)}, budget=30.0)
    as_tensor = await reds.mesh.infer("red", await prepared(reds.mesh, data), budget=30.0)
    assert set(sent.outputs) == set(as_tensor.outputs)
    for name, array in sent.outputs.items():
        np.testing.assert_array_equal(array, as_tensor.outputs[name])
    assert sent.outputs["scores"].max() > 0.5


async def test_a_client_that_knows_nothing_of_us_sends_the_files_bytes_as_uint8(
    reds: LocalMesh,
) -> None:
    data = picture_of(4)
    tensor = np.frombuffer(data, np.uint8)
    answered = await reds.mesh.ask_service("red", {INPUT: tensor}, 30.0)
    expected = await reds.mesh.infer("red", await prepared(reds.mesh, data), budget=30.0)
    np.testing.assert_array_equal(answered.outputs["scores"], expected.outputs["scores"])


@pytest.mark.parametrize("harm", ["cut short", "a bomb", "no picture", "nothing"])
async def test_a_picture_that_cannot_be_decoded_is_refused_and_the_next_one_answered(
    reds: LocalMesh, harm: str
) -> None:
    data = picture_of(5)
    frame = data.index(b"\xff\xc0")
    bad = {
        "cut short": data[: len(data) // 2],
        "a bomb": data[: frame + 5] + b"\xff\xff\xff\xff" + data[frame + 9 :],  # 65535 x 65535
        "no picture": b"GIF89a" + data[6:],
        "nothing": b"",
    }[harm]
    raw = {INPUT: np.frombuffer(bad, np.uint8)}
    with pytest.raises(swarm.InvalidArgument):
        await reds.mesh.infer("red", raw, budget=30.0)
    good = await reds.mesh.infer("red", {INPUT: swarm.Picture(data)}, budget=30.0)
    assert good.outputs["scores"].max() > 0.5


async def test_no_picture_is_lost_or_wrong_when_the_node_that_decodes_them_is_killed(
    reds: LocalMesh,
) -> None:
    files = [picture_of(seed) for seed in range(40)]
    expected = [
        await reds.mesh.infer("red", await prepared(reds.mesh, data), budget=30.0) for data in files
    ]
    (first,) = (node for node in reds.supervisor.nodes if node.role == "shard-1")

    async def ask(number: int) -> swarm.Result:
        if number == 10:
            first.signal(signal.SIGKILL)
        return await reds.mesh.infer("red", {INPUT: swarm.Picture(files[number])}, budget=60.0)

    answers = await asyncio.gather(*map(ask, range(len(files))))
    for answer, wanted in zip(answers, expected, strict=True):
        np.testing.assert_array_equal(answer.outputs["scores"], wanted.outputs["scores"])
    assert any(answer.hops[0].node != expected[0].hops[0].node for answer in answers)
    await all_ready(reds)


async def test_a_node_without_opencv_says_so_and_refuses_pictures_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['cv2'] = None\n")
    wish = Wish("detect", threshold=0.3, bake=False)
    result = await asyncio.to_thread(split, red_detector(), name="red", stages=1, task=wish)
    async with mesh_of(result) as local:
        with monkeypatch.context() as without:
            without.setenv("PYTHONPATH", str(tmp_path))
            node = local.start("shard-1", "red")
            await local.ready(60.0)
        await eventually(lambda: local.status_of(node) is not None)
        assert "pictures" not in (local.status_of(node) or {})["codecs"]
        data = picture_of(7)
        with pytest.raises(swarm.InvalidArgument, match="decodes no pictures: pip install"):
            await local.mesh.infer("red", {INPUT: swarm.Picture(data)}, budget=30.0)
        tensors = await prepared(local.mesh, data)
        assert (await local.mesh.infer("red", tensors, budget=30.0)).outputs["scores"].max() > 0.5
