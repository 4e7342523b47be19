"""A gateway's page in a browser: models, lines that answer when pasted, and boxes on a picture."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from browsing import DESKTOP, PHONE, Look
from playwright.async_api import Page, expect
from skimage import data, transform
from support.foreign_library import printed
from support.gateways import address, ask, gateway_of
from support.meshes import add_model, mesh_of, split_digits

from nodes.gateway.access.rules import block, new_key
from nodes.up.mesh import LocalMesh
from shards.cameras import Task, decode_picture, document
from shards.cameras.wish import Wish
from shards.split.split import split
from swarm.security.files import create

MODELS = Path(os.environ.get("SWARM_TEST_MODELS", Path(__file__).parents[4] / "shared/models"))
ULTRAFACE = MODELS / "ultraface" / "version-RFB-320.onnx"
DRAWN = "#state:not(.fault):has-text('model')"
SHOWN = "#models article"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local() -> AsyncIterator[LocalMesh]:
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        yield local


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(local: LocalMesh) -> str:
    return address(local, await gateway_of(local, "--http", "0"))


async def line(page: Page, model: str, language: str) -> str:
    return await page.inner_text(f"#model-{model} [data-language={language}]")


async def pasted(text: str) -> str:
    """The output of a line in a shell."""
    return await printed("bash", "-c", text)


async def test_the_lines_of_the_page_answer_when_they_are_pasted(url: str, look: Look) -> None:
    page = await look.open(url, sign=SHOWN)
    assert "image FP32" in await page.inner_text("#model-digits .tensors")
    answer = json.loads(await pasted(await line(page, "digits", "curl")))
    assert (answer["model_name"], answer["outputs"][0]["shape"]) == ("digits", [1, 10])
    assert "'model_name': 'digits'" in await pasted(await line(page, "digits", "python"))
    script = (await line(page, "digits", "javascript")).replace("then(console.log)", "then(x => x)")
    assert (await page.evaluate(script))["model_name"] == "digits"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_no_serious_fault_and_a_phone_never_scrolls_sideways(
    url: str, look: Look, scheme: str, size: dict[str, int]
) -> None:
    page = await look.open(url, size, scheme, sign=SHOWN)
    found = await Axe().run(page)
    serious = [v["id"] for v in found.response["violations"] if v["impact"] != "minor"]
    assert serious == []
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    await look.keep(page, f"gateway-{scheme}-{size['width']}", whole=True)


async def test_a_page_without_a_key_asks_for_one_and_shows_nothing_else(
    local: LocalMesh, look: Look, tmp_path: Path
) -> None:
    callers, key = tmp_path / "callers.toml", new_key()
    create(callers, block("camera-7", key, 0.0).encode())
    node = await gateway_of(local, "--http", "0", "--gateway-callers", str(callers))
    look.tolerate("401")
    page = await look.open(address(local, node), sign="#who:not([hidden])")
    assert await page.locator("#models article").count() == 0
    await page.fill("#key", key)
    await page.keyboard.press("Enter")
    await expect(page.locator("#models article")).to_have_count(1)
    text = await line(page, "digits", "curl")
    assert "YOUR-KEY" in text
    answer = json.loads(await pasted(text.replace("YOUR-KEY", key)))
    assert answer["model_name"] == "digits"


def png_of_faces() -> bytes:
    """Sixteen faces on one picture."""
    large = [transform.resize(face, (128, 128)) for face in data.lfw_subset()[:16]]
    rows = [np.concatenate(large[i : i + 4], axis=1) for i in range(0, 16, 4)]
    gray = (np.concatenate(rows) * 255).astype(np.uint8)
    return cv2.imencode(".png", gray)[1].tobytes()


def found_by_hand(picture: bytes, task: Task) -> dict[str, Any]:
    """What the whole model finds, without a mesh."""
    image = decode_picture(picture)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # the file's weights are inputs too, one warning each
    session = onnxruntime.InferenceSession(ULTRAFACE, options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, task.prepare(image)), strict=True))
    return document(task.read(outputs, image.shape))


def boxes_of(found: dict[str, Any]) -> list[list[float]]:
    return [one["box"] for one in found["detections"]]


DROP = """async ([selector, encoded]) => {
  const bytes = Uint8Array.from(atob(encoded), (one) => one.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "faces.png", {type: "image/png"}));
  document.querySelector(selector).dispatchEvent(
    new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
}"""
COLOURED = """() => {
  const canvas = document.querySelector("#model-faces canvas");
  const rgba = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let at = 0; at < rgba.length; at += 4) count += Math.abs(rgba[at] - rgba[at + 1]) > 80;
  return count;
}"""


@pytest.mark.skipif(not ULTRAFACE.exists(), reason=f"{ULTRAFACE} is absent")
async def test_a_picture_dropped_on_a_detector_shows_the_boxes_that_the_model_finds(
    local: LocalMesh, url: str, look: Look
) -> None:
    result = split(ULTRAFACE, name="faces", stages=1, profile=False, addition=Wish("detect"))
    await add_model(local, result, "shard-1")
    picture = png_of_faces()
    outside = split(
        ULTRAFACE, name="outside", stages=1, profile=False, addition=Wish("detect", bake=False)
    )
    expected = found_by_hand(picture, Task.of(outside.manifest.parts.get("task")))
    assert len(expected["detections"]) >= 8
    page = await look.open(url, sign="#model-faces .drop")
    async with page.expect_response("**/page/see/faces?*") as told:
        await page.evaluate(DROP, ["#model-faces .drop", base64.b64encode(picture).decode()])
    found = await (await told.value).json()
    assert [one["label"] for one in found["detections"]] == [
        one["label"] for one in expected["detections"]
    ]
    np.testing.assert_allclose(boxes_of(found), boxes_of(expected), atol=1e-4)
    await expect(page.locator("#model-faces [role=status] li")).to_have_count(len(boxes_of(found)))
    assert await page.evaluate(COLOURED) > 100
    await look.keep(page, "gateway-boxes", whole=True)


async def test_a_model_that_declares_no_task_takes_no_picture(url: str, look: Look) -> None:
    page = await look.open(url, sign=SHOWN)
    assert await page.locator("#model-digits .drop").count() == 0
    code, _, told = await asyncio.to_thread(ask, f"{url}/page/see/digits?width=1&height=1", {})
    assert code == 400
    assert "does not say what it does with a picture" in told["error"]
