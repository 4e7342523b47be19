"""A node and a command that name no model take the one that their mesh serves."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.commands import Commands, said
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh
from swarm.errors import NotFound

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_node_and_infer_take_the_one_model_that_serves(
    digits_mesh: LocalMesh, run: Commands
) -> None:
    url, name = digits_mesh.url, digits_mesh.name
    trusted = ("--trust", digits_mesh.trusted)
    where = ("--nats", url, "--mesh", name)
    node = run.start("nodes.cli.node", "--role", "shard-1", "--json", *where, *trusted)
    await eventually(lambda: '"ready"' in node.stdout, f"it serves:\n{node.stderr}")
    assert node.process.poll() is None
    assert "the mesh serves digits, which this node takes" in node.stderr
    answer = await asyncio.to_thread(said, "infer", "--random", "--json", *where)
    assert json.loads(answer.stdout)["model"] == "digits"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_node_of_a_mesh_without_a_model_waits_for_one(
    digits_mesh: LocalMesh, run: Commands
) -> None:
    where = ("--nats", digits_mesh.url, "--mesh", "another")
    node = run.start("nodes.cli.node", "--role", "fallback", "--json", *where)
    nothing = "the mesh serves no model yet: swarm model push DIR"
    await eventually(lambda: nothing in node.stdout, f"it waits:\n{node.stderr}")
    answer = await asyncio.to_thread(said, "infer", "--random", *where)
    assert answer.code == 1
    assert nothing in answer.stderr
    async with swarm.connect(digits_mesh.url, "another") as mesh:
        with pytest.raises(NotFound):
            await mesh.registry.serving("digits")
    node.process.terminate()
    assert await asyncio.to_thread(node.wait) == 0
