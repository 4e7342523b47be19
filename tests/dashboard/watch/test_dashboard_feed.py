"""Changes reach every browser, and one that reads too slowly is not left with half a picture."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from statuses import a_status
from support.waiting import GENEROUS

from nodes.watch.dashboard.feed import FRAMES_KEPT, MOST_BROWSERS, DashboardFeed
from nodes.watch.dashboard.page_state import PageState


class Scene:
    """A feed that runs, and a node that speaks."""

    def __init__(self) -> None:
        self.feed = DashboardFeed(PageState("default"))
        self.feed.state.take_link(True, "127.0.0.1:4222", "", time.monotonic())
        self.said = 0

    def speak(self) -> None:
        """The node says something new, and everybody is to hear of it at once."""
        self.said += 1
        data = json.dumps(a_status("s1", detail=f"{self.said}")).encode()
        # A node a second: a flood would not be read.
        now = time.monotonic() + self.said
        self.feed.state.take_status("swarm.default.status.s1.-", data, now)
        self.feed.news.set()
        self.feed.urgent.set()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    running = asyncio.create_task(made.feed.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def next_of(browser: AsyncIterator[bytes]) -> dict[str, Any]:
    async with asyncio.timeout(GENEROUS):
        frame = await anext(browser)
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    return dict(json.loads(frame[6:]))


async def test_a_browser_gets_the_whole_picture_first_and_then_what_changes(scene: Scene) -> None:
    scene.speak()
    browser = scene.feed.browser()
    assert (await next_of(browser))["whole"]
    await next_of(browser)  # what was said before it came
    scene.speak()
    change = await next_of(browser)
    assert "whole" not in change
    assert change["nodes"]["s1"]["detail"] == "2"


async def test_a_browser_that_reads_too_slowly_gets_the_whole_picture_again(scene: Scene) -> None:
    slow, quick = scene.feed.browser(), scene.feed.browser()
    assert (await next_of(slow))["whole"]
    assert (await next_of(quick))["whole"]
    for _ in range(FRAMES_KEPT + 1):
        scene.speak()
        await next_of(quick)
    again = await next_of(slow)
    assert again["whole"]
    assert again["nodes"]["s1"]["detail"] == f"{scene.said}"


async def test_every_browser_ends_with_the_feed_and_there_are_never_too_many(scene: Scene) -> None:
    browsers = [scene.feed.browser() for _ in range(MOST_BROWSERS)]
    for browser in browsers:
        await next_of(browser)
    assert scene.feed.is_full
    scene.feed.end()
    for browser in browsers:
        with pytest.raises(StopAsyncIteration):
            await next_of(browser)
    assert not scene.feed.is_full
