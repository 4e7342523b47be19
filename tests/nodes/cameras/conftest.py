"""For the tests of cameras."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from support.ports import free_port

from nodes.cameras.sources.camera import Camera
from nodes.cameras.sources.opened import open_sources


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., list[Camera]]]:
    """Opens sources by the text of `--source`; they are closed with the test."""
    cameras: list[Camera] = []

    def opens(text: str, on_full: str = "auto", rate: float = 0.0) -> list[Camera]:
        found = open_sources(text, on_full, rate)
        cameras.extend(found)
        return found

    yield opens
    for camera in cameras:
        await camera.close()


@pytest.fixture
def udp() -> str:
    return f"udp://127.0.0.1:{free_port()}"
