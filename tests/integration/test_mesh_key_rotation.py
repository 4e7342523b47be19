"""Nodes that run change the key of their gossip, and never lose sight of each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command, Commands
from support.meshes import READY
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.link import LinkMessage
from swarm.security.mesh_keys import make_mesh_key, rotate_mesh_key

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_three_steps_change_the_key_of_nodes_that_run_and_nobody_is_taken_for_dead(
    run: Commands, tmp_path: Path
) -> None:
    source = tmp_path / "mesh.key"
    make_mesh_key(source)
    files = [tmp_path / f"{name}.key" for name in "ab"]
    statuses: dict[str, dict[str, Any]] = {}

    def take(message: LinkMessage) -> None:
        doc = json.loads(bytes(message.data))
        statuses[doc["node"]] = doc["gossip"]

    def all_alive() -> bool:
        return len(statuses) == 2 and all(g["peers"]["alive"] == 2 for g in statuses.values())

    async with EmbeddedServer() as server, swarm.connect(server.url) as mesh:
        mesh.link.subscribe(mesh.subjects.status_all, take)
        nodes = []
        for file in files:
            shutil.copy(source, file)
            nodes.append(
                run.start(
                    *("nodes.cli.node", "--role", "gateway", "--nats", server.url),
                    *("--mesh-key", str(file), "--node", file.stem, "--gossip", "local"),
                    *("--allow-unsigned", "--verbose"),
                )
            )
        await eventually(all_alive, f"they meet: {nodes[0].stderr}", READY)
        for step in range(1, 4):
            rotate_mesh_key(source)
            for file, node in zip(files, nodes, strict=True):
                shutil.copy(source, file)

                def has_it(node: Command = node, step: int = step) -> bool:
                    return node.stderr.count("gossip marks with") == step

                await eventually(has_it, f"step {step} reaches {file.stem}: {node.stderr}", READY)
        statuses.clear()
        await eventually(all_alive, "both are alive to both", READY)
    for gossip in statuses.values():
        assert "forged" not in gossip["refused"]
        assert not {"died", "suspected"} & gossip["events"].keys(), gossip
