"""The cameras' page in a real browser: what they see, while a shard is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from browsing import DASHBOARD_ENDS, PHONE, Look
from playwright.async_api import Page, expect
from support.camera import sending
from support.camera_mesh import Sink, picture_model
from support.meshes import LocalMesh, add_model, all_ready, mesh_of
from support.ports import free_port
from support.waiting import eventually

from nodes.up.supervisor import NodeProcess
from shards.split.split import split

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


@dataclass
class Seen:
    local: LocalMesh
    nodes: list[NodeProcess]
    edge: NodeProcess
    url: str
    sink: Sink


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def seen() -> AsyncIterator[Seen]:
    """A camera of 20 frames a second, whose edge shows a page."""
    async with mesh_of() as local:
        result = await asyncio.to_thread(split, picture_model(), name="pictures", stages=3)
        nodes = await add_model(local, result, "shard-1", "shard-2", "shard-3", "fallback")
        sink = Sink(local, "page")
        camera, port = f"udp://127.0.0.1:{free_port()}", free_port()
        with sending(camera, "--rate", "20", "--size", "320x240"):
            edge = local.start(
                "edge", "pictures", "--source", f"gate={camera}", "--sink", "page",
                "--view", f"127.0.0.1:{port}",
            )  # fmt: skip
            edge.wanted = False
            await eventually(lambda: len(sink.lines) > 5, "the camera is answered")
            yield Seen(local, nodes, edge, f"http://127.0.0.1:{port}/", sink)


async def picture_width(page: Page) -> int:
    return int(await page.locator("article img").evaluate("img => img.naturalWidth"))


@pytest.mark.parametrize(("scheme", "size"), [("light", None), ("dark", PHONE)])
async def test_the_page_can_be_read_by_all_in_both_themes_and_on_a_phone(
    seen: Seen, look: Look, scheme: str, size: dict[str, int] | None
) -> None:
    page = await look.open(seen.url, **({"size": size} if size else {}), scheme=scheme)
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator("h2")).to_have_text("gate")
    await expect(page.locator('[data-key="p50"]')).to_contain_text("ms")
    await expect(page.locator(".parts li").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = await Axe().run(page)
    serious = [v["id"] for v in found.response["violations"] if v["impact"] != "minor"]
    assert serious == []


async def test_pictures_go_on_while_a_shard_is_killed(seen: Seen, look: Look) -> None:
    page = await look.open(seen.url)

    async def is_seen() -> bool:
        return await picture_width(page) == 320

    await eventually(is_seen, "a picture is on the page")
    victim = next(node for node in seen.nodes if node.role == "shard-2")
    answered = len(seen.sink.lines)
    victim.signal(signal.SIGKILL)
    await eventually(lambda: len(seen.sink.lines) > answered + 40, "results go on")
    before = await page.locator("article img").screenshot()

    async def changes() -> bool:
        return bool(before != await page.locator("article img").screenshot())

    await eventually(changes, "the picture goes on")
    assert {line["status"] for line in seen.sink.lines} == {"OK"}
    await expect(page.locator(".state")).to_have_text("running")
    await all_ready(seen.local)


async def test_a_page_elsewhere_that_points_its_name_at_the_device_sees_nothing(
    seen: Seen, look: Look
) -> None:
    page = await look.open(seen.url)
    look.tolerate("400", "404")
    status = "path => fetch(path).then(answer => answer.status)"
    assert await page.evaluate(status, "/camera/nobody.mjpg") == 404
    answer = await page.request.get(seen.url, headers={"Host": "evil.example"})
    assert answer.status == 400
    found = await page.request.get(f"{seen.url}state.json")
    assert found.headers["cross-origin-resource-policy"] == "same-origin"


async def test_the_page_says_that_its_device_is_gone(seen: Seen, look: Look) -> None:
    page = await look.open(seen.url)
    look.tolerate(*DASHBOARD_ENDS)
    seen.edge.signal(signal.SIGTERM)
    await eventually(lambda: not seen.edge.alive, "the edge ends though a browser watches")
    await expect(page.locator("#link")).to_have_text("the device does not answer")
