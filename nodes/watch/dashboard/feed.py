"""Sends the view's changes to every browser, as server-sent events.

A change is written once, and the same bytes go to all browsers. A browser that reads too slowly
misses changes, and gets the whole view again when it has caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from nodes.watch.dashboard.page_state import PageState

MOST_BROWSERS = 200
FRAMES_KEPT = 16  # of a browser that reads slowly
PACE = 0.25  # seconds between two changes; urgent ones wait for `AT_ONCE` only
AT_ONCE = 0.05


class _Browser:
    """One browser's changes. behind: it missed some, and needs the whole view."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(FRAMES_KEPT)
        self.behind = True

    def put(self, frame: bytes | None) -> None:
        if self.frames.full():
            while not self.frames.empty():
                self.frames.get_nowait()
            self.behind = True
        self.frames.put_nowait(frame)


class DashboardFeed:
    """`run()` sends changes until cancelled; `browser()` is what one browser gets."""

    def __init__(self, state: PageState) -> None:
        self.state = state
        self.news = asyncio.Event()
        self.urgent = asyncio.Event()
        self._browsers: set[_Browser] = set()

    @property
    def is_full(self) -> bool:
        return len(self._browsers) >= MOST_BROWSERS

    async def run(self) -> None:
        """Until cancelled; then each browser's stream ends."""
        try:
            while True:
                await self.news.wait()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PACE):
                        await self.urgent.wait()
                    await asyncio.sleep(AT_ONCE)  # what comes together goes out together
                self.news.clear()
                self.urgent.clear()
                change = message(self.state.changes(time.monotonic()))
                for browser in self._browsers:
                    browser.put(change)
        finally:
            self.end()

    def end(self) -> None:
        """End each browser's stream."""
        for browser in self._browsers:
            browser.put(None)

    async def browser(self) -> AsyncIterator[bytes]:
        """The whole view, then each change, until `run` ends."""
        own = _Browser()
        self._browsers.add(own)
        try:
            while True:
                if own.behind:
                    while not own.frames.empty():
                        if own.frames.get_nowait() is None:
                            return
                    own.behind = False
                    yield self._whole_now()
                frame = await own.frames.get()
                if frame is None:
                    return
                if not own.behind:
                    yield frame
        finally:
            self._browsers.discard(own)

    def _whole_now(self) -> bytes:
        return message(self.state.whole(time.monotonic()))


def message(document: dict[str, Any]) -> bytes:
    """A server-sent event without a name. JSON has no line ends of its own."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
