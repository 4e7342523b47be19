"""`swarm infer` where nobody serves the model says so, with the line to type."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.commands import said
from support.meshes import mesh_of
from zoo.builders import mlp

from nodes.up.mesh import push
from shards.split.split import split

pytestmark = pytest.mark.integration


async def test_infer_names_the_stages_without_a_node_and_the_line_that_starts_one() -> None:
    model = split(mlp(16, 3), name="mlp", stages=2, profile=False)
    async with mesh_of() as local:
        await push(local, model.manifest.to_json(), model.files)
        where = ("--nats", local.url, "--mesh", local.name)
        words = ("infer", "mlp", "--random", "--budget", "300ms", *where)
        line = f"`swarm-node --role shard-1 --model mlp {' '.join(where)}`"
        told = await asyncio.to_thread(said, *words)
        assert told.code == 1
        assert f"no node serves stage 1, 2 of mlp@1: start one for each, {line}" in told.stderr
        document = json.loads((await asyncio.to_thread(said, *words, "--json")).stdout)
        assert document["status"] == "UNAVAILABLE"
        assert line in document["error"]
