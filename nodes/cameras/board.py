"""The newest drawn picture of each camera, for those who watch. No picture is kept for nobody."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

MOST_WATCHERS = 16  # of all cameras


class Board:
    """`put` the newest picture; `watch` gives each newer one. A slow watcher skips some."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._watchers: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def watchers(self) -> int:
        return self._watchers.total()

    def is_watched(self, camera: str) -> bool:
        """May be asked by any thread."""
        return self._watchers[camera] > 0

    def put(self, camera: str, data: bytes) -> None:
        """The newest picture, as a JPEG; an empty one is none."""
        if data:
            number = self._newest.get(camera, (0, b""))[0] + 1
            self._newest[camera] = (number, data)
            self._wake()

    async def watch(self, camera: str) -> AsyncGenerator[bytes, None]:
        """Each newest picture, until the board is closed."""
        self._watchers[camera] += 1
        given = self._newest.get(camera, (0, b""))[0]
        try:
            while not self._closed:
                changed = self._changed
                number, data = self._newest.get(camera, (0, b""))
                if number != given:
                    given = number
                    yield data
                else:
                    await changed.wait()
        finally:
            self._watchers[camera] -= 1
            if not self._watchers[camera]:
                self._newest.pop(camera, None)

    def close(self) -> None:
        """No picture follows."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
