"""Pictures as requests on a real mesh: the node of the first stage decodes and prepares them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import pytest_asyncio
from support.camera_mesh import HEIGHT, WIDTH, Spy, camera, red_detector
from support.meshes import LocalMesh, add_model, all_ready, dismiss, mesh_of
from support.waiting import eventually

import swarm
from shards.cameras import Task, decode_picture
from shards.cameras.wish import Wish
from shards.split.split import split

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
INPUT = "input"
WISH = Wish("detect", threshold=0.3, bake=False)


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
    result = await asyncio.to_thread(split, red_detector(), name="red", stages=2, addition=WISH)
    async with mesh_of(result, "shard-1", "shard-2", "fallback") as local:
        yield local


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched() -> AsyncIterator[LocalMesh]:
    """All messages go by the server, as bytes that anybody can read."""
    result = await asyncio.to_thread(split, red_detector(), name="watched", stages=1, addition=WISH)
    async with mesh_of(result, "shard-1", shm=False) as local:
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


async def test_whoever_runs_the_first_layers_for_a_client_decodes_its_picture(
    reds: LocalMesh,
) -> None:
    made = await asyncio.to_thread(
        split, red_detector(), name="early", stages=1, edge_layers=2, addition=WISH
    )
    gateway = reds.start("gateway", "")
    nodes = await add_model(reds, made, "shard-1")
    data = picture_of(8)
    sent = await reds.mesh.infer("early", {INPUT: swarm.Picture(data)}, budget=30.0)
    expected = await reds.mesh.infer("red", await prepared(reds.mesh, data), budget=30.0)
    np.testing.assert_allclose(sent.outputs["scores"], expected.outputs["scores"], rtol=1e-5)
    torn = {INPUT: np.frombuffer(data[:-9], np.uint8)}
    with pytest.raises(swarm.InvalidArgument, match="cut short"):
        await reds.mesh.infer("early", torn, budget=30.0)
    await dismiss(reds, [gateway, *nodes])


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


def draw_folder(folder: Path, count: int) -> str:
    """Pictures with a red square."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03}.png").write_bytes(picture_of(number, ".png"))
    return str(folder)


def sent_pictures(spy: Spy) -> list[np.ndarray]:
    """What any subscriber finds of JPEGs in the messages of all subjects."""
    messages = (data for _, data in spy.messages)
    cut = (data[data.index(b"\xff\xd8\xff") :] for data in messages if b"\xff\xd8\xff" in data)
    return [decode_picture(swarm.Picture(data).data) for data in cut]


@pytest.mark.parametrize("mask", [False, True])
async def test_an_edge_sends_jpegs_of_what_its_door_lets_through(
    watched: LocalMesh, mask: bool, tmp_path: Path
) -> None:
    (tmp_path / "red.onnx").write_bytes(red_detector())
    spy, sink = Spy(watched), f"sent-{mask}"
    edge = camera(
        watched,
        sink,
        draw_folder(tmp_path / "p", 400),
        *["--rate", "20", "--send", "jpeg:90"],
        *["--mask", str(tmp_path / "red.onnx")] * mask,
        *["--mask-proof", draw_proof(tmp_path)] * mask,
    )
    await eventually(lambda: len(sent_pictures(spy)) >= 5, "the edge hears who decodes pictures")
    edge.signal(signal.SIGTERM)
    await eventually(lambda: not edge.alive)
    assert {line["status"] for line in spy.lines(sink)} == {"OK"}
    seen = sent_pictures(spy)
    assert {image.shape for image in seen} == {(HEIGHT, WIDTH, 3)}, "of the model's own size"
    redness = [float((image[..., 0].astype(int) - image[..., 2]).max()) for image in seen]
    assert max(redness) < 60 if mask else min(redness) > 150


@pytest.mark.benchmark
async def test_an_edge_sends_tensors_while_a_node_of_stage_1_decodes_no_pictures(
    watched: LocalMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without_opencv(without, tmp_path)
        fallback = watched.start("fallback", "watched")
        state = partial(watched.status_of, fallback)
        await eventually(lambda: (state() or {}).get("state") == "ready", "the fallback serves")
    spy = Spy(watched)
    edge = camera(watched, "raw", draw_folder(tmp_path / "p", 5), "--send", "jpeg:90")
    await eventually(lambda: not edge.alive and len(spy.lines("raw")) == 5)
    assert {line["status"] for line in spy.lines("raw")} == {"OK"}
    assert sent_pictures(spy) == []
    await dismiss(watched, [fallback])


def without_opencv(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Processes that are started now find none."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['cv2'] = None\n")
    patch.setenv("PYTHONPATH", str(folder))


def draw_proof(folder: Path) -> str:
    """A picture in which the detector finds something."""
    image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    image[8:32, 8:32] = (20, 10, 250)
    cv2.imwrite(str(folder / "proof.png"), image)
    return str(folder / "proof.png")


async def test_a_node_without_opencv_says_so_and_refuses_pictures_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await asyncio.to_thread(split, red_detector(), name="red", stages=1, addition=WISH)
    async with mesh_of(result) as local:
        with monkeypatch.context() as without:
            without_opencv(without, tmp_path)
            node = local.start("shard-1", "red")
            await local.ready(60.0)
        await eventually(lambda: local.status_of(node) is not None)
        assert "pictures" not in (local.status_of(node) or {})["codecs"]
        data = picture_of(7)
        with pytest.raises(swarm.InvalidArgument, match="decodes no pictures: pip install"):
            await local.mesh.infer("red", {INPUT: swarm.Picture(data)}, budget=30.0)
        tensors = await prepared(local.mesh, data)
        assert (await local.mesh.infer("red", tensors, budget=30.0)).outputs["scores"].max() > 0.5
