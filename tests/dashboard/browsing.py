"""Pages of a browser, as a test looks at them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page

FLEET_IS_DRAWN = "#link:not([data-state=starting])"
DESKTOP = {"width": 1280, "height": 900}
# What a page's console says when the process of its page has ended.
DASHBOARD_ENDS = (
    "ERR_CONNECTION_REFUSED",
    "ERR_CONNECTION_RESET",
    "ERR_EMPTY_RESPONSE",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
)
PHONE = {"width": 390, "height": 844}


class Look:
    """Opens pages, and notes their faults. faults: errors of consoles and scripts."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.faults: list[str] = []
        self.tolerated: tuple[str, ...] = ()
        self._browser = browser
        self._folder = folder
        self._contexts: list[BrowserContext] = []

    async def open(
        self,
        url: str,
        size: dict[str, int] = DESKTOP,
        scheme: str = "light",
        sign: str = FLEET_IS_DRAWN,
        **more: Any,
    ) -> Page:
        """A page in a context of its own. sign: selector of an element that a drawn page has."""
        context = await self._browser.new_context(
            viewport=size,  # type: ignore[arg-type]
            color_scheme=scheme,  # type: ignore[arg-type]
            **more,
        )
        self._contexts.append(context)
        page = await context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        await page.goto(url)
        await page.wait_for_selector(sign, timeout=30_000)
        return page

    def tolerate(self, *texts: str) -> None:
        """Console errors that hold one of these texts belong to the test's story."""
        self.tolerated += texts

    async def keep(self, page: Page, name: str, whole: bool = False) -> Path:
        """A screenshot, as an artifact of the test."""
        path = self._folder / f"{name}.png"
        await page.screenshot(path=path, full_page=whole)
        return path

    async def close(self) -> None:
        for context in self._contexts:
            await context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        told = message.type in ("error", "warning")
        if told and not any(text in message.text for text in self.tolerated):
            self.faults.append(f"console: {message.text}")


async def text_of(page: Page, selector: str) -> str:
    return (await page.inner_text(selector)).strip()


async def main_thread_tasks(browser: Browser, seconds: float) -> list[float]:
    """Milliseconds of processor time of each task of the main threads of all pages, for so long.

    Processor time and not the time that passed: other processes of a busy machine stretch a task,
    and it is none the longer for the page."""
    await browser.start_tracing(categories=["toplevel", "__metadata"])
    await asyncio.sleep(seconds)  # what is measured is how much happens in this time
    events = json.loads(await browser.stop_tracing())["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return sorted(
        event["tdur"] / 1e3
        for event in events
        if (event["pid"], event["tid"]) in mains and "tdur" in event
    )
