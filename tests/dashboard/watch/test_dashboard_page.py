"""The page in a real browser, over a live mesh: real nodes, a real kill, a real server."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from browsing import DASHBOARD_ENDS, PHONE, Look, text_of
from fleets import DashboardProcess, dashboard, fetch, publish_status
from playwright.async_api import Page, expect
from statuses import a_status
from support.meshes import READY, dismiss, mesh_of, split_digits
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, push
from swarm.link import Link

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
ROLES = ("shard-1", "shard-2", "shard-3", "fallback")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live_mesh() -> AsyncIterator[LocalMesh]:
    """digits in three shards, a fallback, and an edge that asks 30 times a second."""
    async with mesh_of(name="default") as local:
        await push(local, split_digits().manifest.to_json(), split_digits().files)
        local.start("edge", "digits", "--source", "digits", "--rate", "30", "--sink", "seen")
        for role in ROLES:
            local.start(role, "digits")
        await local.ready(READY)
        yield local


@pytest.fixture(scope="module")
def live(
    live_mesh: LocalMesh, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DashboardProcess]:
    """Its address with the token may act; without it, it may not."""
    folder = tmp_path_factory.mktemp("dashboard")
    with dashboard(live_mesh.url, folder, "--allow-actions") as process:
        yield process


async def serious_faults(page: Page) -> list[str]:
    """What axe-core calls serious or critical."""
    found = await Axe().run(page)
    return [
        f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes'][:3]]}"
        for v in found.response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_fault_on_any_page(
    live: DashboardProcess, look: Look, scheme: str
) -> None:
    page = await look.open(live.root, scheme=scheme)
    for place in ("", "nodes", "models", "events") if scheme == "light" else ("", "models"):
        await page.goto(f"{live.root}#/{place}")
        await expect(page.locator("main h2")).to_have_count(1)
        assert await serious_faults(page) == [], place
    await page.goto(f"{live.root}#/nodes")
    await page.locator("tbody th a").first.click()
    await expect(page.locator(".facts-list")).to_be_visible()
    assert await serious_faults(page) == []
    await look.keep(page, f"node-{scheme}")


async def test_a_phone_scrolls_down_and_never_sideways(live: DashboardProcess, look: Look) -> None:
    page = await look.open(live.root, PHONE, is_mobile=True, has_touch=True)
    await expect(page.locator(".stage")).to_have_count(3)
    for place in ("", "nodes", "models", "events"):
        await page.goto(f"{live.root}#/{place}")
        await expect(page.locator("main h2")).to_have_count(1)
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, place
        await look.keep(page, f"phone-{place or 'overview'}", whole=True)


async def test_every_page_is_reached_by_keyboard_alone(live: DashboardProcess, look: Look) -> None:
    page = await look.open(live.root)
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    for name in ("Overview", "Nodes", "Models", "Events"):
        await page.keyboard.press("Tab")
        await expect(page.locator("nav a", has_text=name)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main h2")).to_have_text("Events")
    await expect(page.locator("main")).to_be_focused()


async def test_health_a_kill_the_takeover_and_the_return_are_on_the_page(
    live_mesh: LocalMesh, live: DashboardProcess, look: Look
) -> None:
    page = await look.open(live.root)
    await expect(page.locator(".verdict")).to_have_attribute("data-level", "well")
    await expect(page.locator(".stage")).to_have_count(3)
    await expect(page.locator(".pipeline .facts")).to_contain_text("100 % of the traffic")
    await expect(page.locator(".budget .where").first).to_contain_text("most goes to")
    await expect(page.locator(".part.network").first).to_be_visible()
    await look.keep(page, "healthy-desktop")
    victim = next(node for node in live_mesh.supervisor.nodes if node.role == "shard-2")
    victim.wanted = False
    stage = page.locator(".stage").nth(1)
    victim.signal(signal.SIGKILL)
    await expect(stage).to_have_attribute("data-cover", "fallback")
    await expect(stage.locator('[data-serves="alone"]')).to_contain_text("fallback serves")
    await expect(stage.locator('[data-health="dead"]')).to_have_count(1)
    await expect(page.locator("#verdict-text")).to_contain_text("took over")
    await look.keep(page, "one-dead-desktop")
    dark = await look.open(live.root, scheme="dark")
    await look.keep(dark, "one-dead-dark")
    victim.start()
    victim.wanted = True
    await live_mesh.ready(READY)
    await expect(stage).to_have_attribute("data-cover", "primary")


async def test_a_node_is_drained_by_two_presses_and_by_none_without_the_token(
    live_mesh: LocalMesh, live: DashboardProcess, look: Look
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    node = live_mesh.start("fallback", "digits")
    node.wanted = False
    await live_mesh.ready(READY)
    name = (live_mesh.status_of(node) or {})["node"]
    stranger = await look.open(f"{live.root}#/node/{name}")
    await expect(stranger.locator(".facts-list")).to_be_visible()
    assert await stranger.get_by_role("button", name="Drain").count() == 0
    page = await look.open(live.url)
    assert "token" not in page.url
    await page.goto(f"{live.root}#/node/{name}")
    await page.get_by_role("button", name="Drain this node").press("Enter")
    assert await serious_faults(page) == []
    await page.get_by_role("button", name="Yes, do it").press("Enter")
    await expect(page.locator(".actions .said")).to_contain_text("done (no audit)")
    await expect(page.locator(".facts-list")).to_contain_text("left")
    await eventually(lambda: not node.alive, "it ends by itself")
    assert await dismiss(live_mesh, [node]) == [0]


async def test_a_server_or_a_dashboard_that_goes_is_told_and_its_return_needs_no_reload(
    server: EmbeddedServer, link: Link, look: Look, tmp_path: Path
) -> None:
    look.tolerate(*DASHBOARD_ENDS)
    with dashboard(server.url, tmp_path) as process:
        page = await look.open(process.url)
        publish_status(link, a_status("s1"))
        await expect(page.locator(".stage")).to_have_count(1)
        await server.kill()
        await expect(page.locator("#alarm")).to_contain_text("cannot be reached")
        await expect(page.locator("#link")).to_have_attribute("data-state", "away")
        await look.keep(page, "server-gone-desktop")
        assert fetch(f"{process.root}healthz")[0] == 503
        await server.start()
        await expect(page.locator("#link")).to_have_attribute("data-state", "live")
        await expect(page.locator("#alarm")).to_be_hidden()
        await link.ready(30.0)
        publish_status(link, a_status("s2"))
        await expect(page.locator(".seat")).to_have_count(2)
        port = int(process.root.rstrip("/").rpartition(":")[2])
        process.end()
        await expect(page.locator("#alarm")).to_contain_text("does not answer")
    with dashboard(server.url, tmp_path, port=port):
        await expect(page.locator("#link")).to_have_attribute("data-state", "live")
        assert await text_of(page, "#link-text") == "live"
