"""The configurations of linked sites, as they are delivered."""

from __future__ import annotations

import subprocess

import pytest
from meshes import ROOT

from swarm.services.embedded import find_binary

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", ["hub.conf", "leaf.conf"])
def test_the_server_takes_the_configuration(name: str) -> None:
    path = ROOT / "deploy" / "sites" / name
    tried = subprocess.run(
        [find_binary(), "-c", str(path), "-t"], capture_output=True, text=True, timeout=10
    )
    assert tried.returncode == 0, tried.stderr
