"""Two pushes of one version with other content, at once: one wins, with its own files.

A pusher is stopped before one of its messages to the server, and goes on later: every message of
either is such a step, so all that happens is in an order which the test has chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from manifests import manifest
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import NotFound, SwarmError
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("test")
TIMEOUT = 60.0
OURS = {"a": b"a of ours", "b": b"b of ours"}
THEIRS = {"b": b"b of theirs", "a": b"a of theirs", "c": b"c of theirs"}


class Pusher:
    """Pushes over its own connection. sent: messages that it has written in its last push."""

    def __init__(self, link: Link, note: str, files: dict[str, bytes]) -> None:
        self.link = link
        self.registry = Registry(link, SUBJECTS)
        self.files = files
        self.note = note
        self.sent = 0
        self.stopped = asyncio.Event()  # or ended
        self._stop_before = -1
        self._held: list[Callable[[], None]] = []
        self._publish = link.publish
        link.publish = self._written  # type: ignore[method-assign]

    def _written(self, *message: Any, **more: Any) -> None:
        if self.sent == self._stop_before:
            self._held.append(lambda: self._publish(*message, **more))
            self.stopped.set()
        else:
            self.sent += 1
            self._publish(*message, **more)

    def begin(self, model: str, stop_before: int = -1) -> asyncio.Task[str]:
        """Push; the result is "" or the text of the error. stop_before: the number of the message
        that waits for `go_on`, from 0."""
        self.sent, self._stop_before = 0, stop_before
        self.stopped.clear()
        return asyncio.create_task(self._push(model))

    async def _push(self, model: str) -> str:
        try:
            await self.registry.push(manifest("1", model, note=self.note), self.files)
        except SwarmError as error:
            return str(error)
        finally:
            self.stopped.set()
        return ""

    def go_on(self) -> None:
        self._stop_before = -1
        while self._held:
            self._held.pop(0)()


@pytest.fixture
async def pushers(server: EmbeddedServer, links: Links) -> tuple[Pusher, Pusher]:
    ours = Pusher(await links.connect(server.url), "ours", OURS)
    return ours, Pusher(await links.connect(server.url), "theirs", THEIRS)


async def check(model: str, ours: str, theirs: str, registry: Registry, step: object) -> None:
    """Exactly one has pushed, and what lies there is its own."""
    assert (ours == "") != (theirs == ""), (step, ours, theirs)
    lost = ours or theirs
    assert f"{model}@1" in lost, step
    assert "another --version" in lost, step
    files, note = (OURS, "ours") if not ours else (THEIRS, "theirs")
    assert await registry.manifest(model, "1") == manifest("1", model, note=note), step
    assert await registry.fetch(model, "1", list(files)) == files, step
    assert await registry.serving(model) == "1", step


async def test_a_push_between_any_two_messages_of_another_one_leaves_one_version_as_a_whole(
    pushers: tuple[Pusher, Pusher],
) -> None:
    ours, theirs = pushers
    async with asyncio.timeout(TIMEOUT):
        await ours.begin("alone")
        messages = ours.sent
        assert messages > 10
        for step in range(messages):
            model = f"m{step}"
            first = ours.begin(model, step)
            await ours.stopped.wait()
            second = await theirs.begin(model)
            ours.go_on()
            await check(model, await first, second, ours.registry, step)


async def test_two_pushes_that_stop_anywhere_leave_one_version_as_a_whole(
    pushers: tuple[Pusher, Pusher],
) -> None:
    ours, theirs = pushers
    async with asyncio.timeout(TIMEOUT):
        await ours.begin("alone")
        await theirs.begin("alone-too")
        messages, of_theirs = ours.sent, theirs.sent
        for step in range(0, messages, 2):
            for other in range(1, of_theirs, 3):
                model = f"m{step}-{other}"
                first = ours.begin(model, step)
                await ours.stopped.wait()
                second = theirs.begin(model, other)
                await theirs.stopped.wait()
                ours.go_on()
                said = await first
                theirs.go_on()
                await check(model, said, await second, ours.registry, (step, other))


async def test_a_version_that_is_being_pushed_is_not_there_yet(
    pushers: tuple[Pusher, Pusher],
) -> None:
    ours, theirs = pushers
    await ours.begin("alone")
    pushing = ours.begin("m", ours.sent // 2)
    await ours.stopped.wait()
    with pytest.raises(NotFound):
        await theirs.registry.manifest("m", "1")
    assert await theirs.registry.models() == [("alone", "1")]
    ours.go_on()
    assert await pushing == ""
    assert await theirs.registry.models() == [("alone", "1"), ("m", "1")]


async def test_two_pushes_of_the_same_content_both_succeed(
    pushers: tuple[Pusher, Pusher],
) -> None:
    ours, theirs = pushers
    theirs.note, theirs.files = ours.note, ours.files
    async with asyncio.timeout(TIMEOUT):
        await ours.begin("alone")
        for step in range(ours.sent):
            first = ours.begin(f"m{step}", step)
            await ours.stopped.wait()
            assert await theirs.begin(f"m{step}") == "", step
            ours.go_on()
            assert await first == "", step
            assert await ours.registry.fetch(f"m{step}", "1", list(OURS)) == OURS


async def test_a_push_that_lost_says_so_though_its_server_has_not_heard_of_the_other_one_yet(
    pushers: tuple[Pusher, Pusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster the leader refuses the write, and a server that is behind answers the read."""
    ours, theirs = pushers
    read, write, late = jetstream.kv_message, jetstream.kv_replace, []

    async def write_late(link: Link, bucket: str, key: str, value: bytes, **more: Any) -> Any:
        if link is ours.link and value and key.startswith("models."):
            late.append(await read(link, bucket, key))  # our claim still stands there
            assert await theirs.begin("m") == ""
        return await write(link, bucket, key, value, **more)

    async def read_behind(link: Link, bucket: str, key: str, *more: Any) -> Any:
        if link is ours.link and late and key.startswith("models."):
            return late[0]
        return await read(link, bucket, key, *more)

    monkeypatch.setattr(jetstream, "kv_replace", write_late)
    monkeypatch.setattr(jetstream, "kv_message", read_behind)
    assert "another --version" in await ours.begin("m")
