"""A real browser for the dashboard's tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from browsing import Look
from fleets import linked
from playwright.async_api import Browser, async_playwright, expect
from support.interfaces import interfaces_stay
from support.waiting import GENEROUS

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link

INSTALL = "apt-get install --yes chromium"
expect.set_options(timeout=GENEROUS * 1000)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Headless Chromium. Where there is none the test is skipped, and in CI it fails."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"no browser, and CI skips nothing: {INSTALL}")
        pytest.skip(f"no browser: {INSTALL}")
    async with async_playwright() as playwright:
        # A container's root has no sandbox, and its /dev/shm may be small.
        started = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        await started.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """$SWARM_SCREENSHOTS, else a folder of the test."""
    folder = Path(os.environ.get("SWARM_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest_asyncio.fixture(loop_scope="session")
async def look(browser: Browser, screenshots: Path) -> AsyncIterator[Look]:
    """Pages of the browser. One that writes an error to its console, or throws, fails its test."""
    with interfaces_stay():
        pages = Look(browser, screenshots)
        yield pages
        await pages.close()
    assert pages.faults == []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A server where nodes only speak."""
    async with EmbeddedServer() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def link(server: EmbeddedServer) -> AsyncIterator[Link]:
    """Whoever may publish at that server."""
    async with linked(server.url) as made:
        yield made
