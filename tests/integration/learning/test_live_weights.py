"""A session never goes back in weight versions, whoever takes over; and a wish beyond them ends."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import numpy as np
from support.commands import said
from support.meshes import mesh_of, split_digits
from support.waiting import eventually

import swarm
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_heldout
from swarm.learning.weights import Weights
from swarm.security.identity import Identity

IMAGE = digits_heldout()[0][:1]
LAST = split_digits().manifest.shard(3)


async def mint(mesh: swarm.Mesh, weights: Weights, factor: float) -> int:
    """A weight version whose logits are `factor` times the base's."""
    file = OnnxFile(split_digits().files[LAST.file])
    names = ("logits.weight", "logits.bias")
    tensors = {name: file.weight(name) * np.float32(factor) for name in names}
    held = await weights.read("digits", "1")
    record = await weights.mint(
        *("digits", "1", LAST.sha256, held, tensors),
        by="test",
        at=time.time(),
        accuracy=None,
        samples=0,
        taught=[],
    )
    assert record is not None
    return record.n


async def test_a_fallback_that_missed_new_weights_does_not_take_a_session_back(
    tmp_path: Path,
) -> None:
    roles = ("shard-1", "shard-2", "shard-3", "fallback")
    async with mesh_of(split_digits(), *roles) as local:
        weights = Weights(local.mesh.link, local.mesh.subjects, Identity.make())
        nodes = local.supervisor.nodes

        async def ask(least: int = 0) -> swarm.Result:
            return await local.mesh.infer("digits", {"image": IMAGE}, 30.0, "s", weights=least)

        base = (await ask()).outputs["logits"]
        await mint(local.mesh, weights, 2.0)
        await ask(least=1)
        shard, fallback = nodes[2], nodes[3]
        fallback.signal(signal.SIGSTOP)
        try:
            number = await mint(local.mesh, weights, 3.0)
            result = await ask(least=number)
            assert result.hops[-1].node.startswith("shard-3")
            shard.wanted = False
            shard.signal(signal.SIGKILL)
            await eventually(lambda: not shard.alive, "shard-3 is dead")
        finally:
            fallback.signal(signal.SIGCONT)
        result = await ask()
        assert result.hops[-1].node.startswith("fallback")
        assert result.hops[-1].weights == number
        np.testing.assert_allclose(result.outputs["logits"], 3 * base, rtol=1e-4)

        np.savez(tmp_path / "x.npz", image=IMAGE)
        command = ("infer", "digits", "--input", str(tmp_path / "x.npz"), "--nats", local.url)
        command += ("--mesh", local.name)
        answered = await asyncio.to_thread(
            said, *command, "--weights", str(number), "--budget", "30s", "--json"
        )
        assert json.loads(answered.stdout)["weights"] == number
        refused = await asyncio.to_thread(said, *command, "--weights", "99", "--budget", "700ms")
        assert refused.code == 1
        assert f"weight version {number} here" in " ".join(refused.stderr.split())
