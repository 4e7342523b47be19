"""A node goes on with the mesh key that its file holds now."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from support.waiting import GENEROUS, eventually

from nodes.connection.mesh_key import MeshKeyFile
from swarm.gossip.wire import MeshKey
from swarm.security.mesh_keys import make_mesh_key, read_mesh_keys, rotate_mesh_key


async def test_each_step_reaches_a_node_that_runs_and_a_bad_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "swarm.node")
    path = tmp_path / "mesh.key"
    make_mesh_key(path)
    file, used = MeshKeyFile(str(path)), asyncio.Queue[MeshKey]()
    assert file.accepted == read_mesh_keys(path).accepted
    following = asyncio.create_task(file.follow(used.put_nowait))
    try:
        rotate_mesh_key(path)
        assert await asyncio.wait_for(used.get(), GENEROUS) == read_mesh_keys(path).accepted
        path.chmod(0o644)
        await eventually(lambda: "others may read it" in caplog.text)
        path.chmod(0o600)
        rotate_mesh_key(path)
        taken = await asyncio.wait_for(used.get(), GENEROUS)
        assert taken == read_mesh_keys(path).accepted == file.accepted
        assert not any(key.decode() in caplog.text for key in taken)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
