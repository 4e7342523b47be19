"""For test files that still name the rig of `tests/support` so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from support.commands import (
    ROOT,
    Command,
    Commands,
    commands,
    environment,
    free_port,
    heed_ctrl_c,
)
from support.meshes import (
    LOOPBACK,
    READY,
    TOLERANCE,
    Load,
    add_model,
    awake,
    close,
    digits,
    dismiss,
    emptied,
    good_request,
    split_digits,
    whole,
)

__all__ = [
    "LOOPBACK",
    "READY",
    "ROOT",
    "TOLERANCE",
    "Command",
    "Commands",
    "Load",
    "add_model",
    "awake",
    "close",
    "commands",
    "digits",
    "dismiss",
    "emptied",
    "environment",
    "free_port",
    "good_request",
    "heed_ctrl_c",
    "split_digits",
    "until",
    "until_now",
    "whole",
]


async def until(condition: Callable[[], Any], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.01)


def until_now(condition: Callable[[], Any], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)
