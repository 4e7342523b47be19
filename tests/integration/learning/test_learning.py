"""Nodes learn together: what was taught at each of them is served by all, and nothing private
leaves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import numpy as np
import pytest
from nats.aio.client import Client
from support.commands import said
from support.meshes import READY, mesh_of
from support.waiting import eventually
from test_learned_weights import MODEL, frozen_part, split_fresh

import swarm
from nodes.up.mesh import LocalMesh, push
from nodes.up.supervisor import NodeProcess
from shards.zoo import digits_heldout, digits_training

PARTS = {"learner-a": (0, 1, 2, 3), "learner-b": (4, 5, 6), "learner-c": (7, 8, 9)}
QUICK = ("--learn-every", "0.2", "--mint-every", "1.5", "--gossip", "local")


def part(*classes: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = digits_training()
    some = np.isin(labels, classes)
    return images[some], labels[some]


def learning(local: LocalMesh, node: NodeProcess) -> dict[str, Any]:
    return dict((local.status_of(node) or {}).get("learning", {}))


async def served_accuracy(mesh: swarm.Mesh, count: int = 100) -> float:
    """Of held-out images that nobody was taught."""
    images, labels = digits_heldout()
    results = await asyncio.gather(
        *(mesh.infer(MODEL, {"image": images[i : i + 1]}, 30.0) for i in range(count))
    )
    digits = [int(result.outputs["logits"].argmax()) for result in results]
    return float(np.mean(np.array(digits) == labels[:count]))


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_three_learners_with_different_classes_teach_the_whole_pipeline(
    tmp_path: Path,
) -> None:
    async with mesh_of() as local:
        result = split_fresh()
        await push(local, result.manifest.to_json(), result.files)
        for role in ("shard-1", "shard-2"):
            local.start(role, MODEL)
        # One learner is a node that serves as well.
        nodes = {
            "learner-a": local.start("shard-3", MODEL, "--node", "learner-a", "--learn", *QUICK),
            "learner-b": local.start("learner", MODEL, "--node", "learner-b", *QUICK),
            "learner-c": local.start("learner", MODEL, "--node", "learner-c", *QUICK),
        }
        await local.ready(READY)
        await eventually(
            lambda: all("rounds" in learning(local, node) for node in nodes.values()),
            "every learner has its model",
        )
        assert await served_accuracy(local.mesh, 30) < 0.3

        with pytest.raises(swarm.InvalidArgument, match="several learners"):
            await local.mesh.teach(MODEL, {"image": part(0, 1)[0]}, part(0, 1)[1])
        for name in ("learner-a", "learner-b"):
            images, labels = part(*PARTS[name])
            taught = await local.mesh.teach(MODEL, {"image": images}, labels, node=name)
            assert (taught.node, taught.classes) == (name, PARTS[name])
            assert taught.trained_on + taught.held_out == len(labels)
        images, labels = part(*PARTS["learner-c"])
        np.savez(tmp_path / "x.npz", image=images)
        np.savez(tmp_path / "y.npz", labels=labels)
        files = ("--input", str(tmp_path / "x.npz"), "--labels", str(tmp_path / "y.npz"))
        there = ("--mesh", local.name)
        taught = await asyncio.to_thread(
            said, "teach", MODEL, *files, "--node", "learner-c", "--json", *there
        )
        assert taught.code == 0, taught
        assert json.loads(taught.stdout)["classes"] == [7, 8, 9]

        async def is_learned() -> bool:
            return await served_accuracy(local.mesh) > 0.95

        await eventually(is_learned, "all classes are served", 60.0)
        told = await asyncio.to_thread(
            said, "model", "weights", MODEL, "--json", "--nats", local.url, *there
        )
        rows = json.loads(told.stdout)
        teachers = {name for row in rows["weights"] for name in row["taught"]}
        assert teachers == set(PARTS)

        # Going back reaches the learners too: their deltas of before are void.
        back = ("model", "rollback", MODEL, "--weights", "0", "--nats", local.url, *there)
        assert (await asyncio.to_thread(said, *back)).code == 0
        await eventually(
            lambda: all(learning(local, node).get("epoch") == 1 for node in nodes.values()),
            "every learner is in the new epoch",
        )


async def test_learners_under_rights_mint_for_all_without_a_violation() -> None:
    async with mesh_of(secure=True) as local:
        result = split_fresh()
        await push(local, result.manifest.to_json(), result.files)
        for role in ("shard-1", "shard-2", "shard-3"):
            local.start(role, MODEL)
        nodes = [local.start("learner", MODEL, *QUICK) for _ in range(2)]
        await local.ready(READY)
        await eventually(
            lambda: all("rounds" in learning(local, node) for node in nodes),
            "both learners have their model",
        )
        for node, classes in zip(nodes, (range(5), range(5, 10)), strict=True):
            images, labels = part(*classes)
            name = (local.status_of(node) or {})["node"]  # which rights bind to its credentials
            await local.mesh.teach(MODEL, {"image": images}, labels, node=name)
        assert local.rights is not None
        asks = local.rights.issue("requester", MODEL)
        async with swarm.connect(local.url, local.name, agent="r", **asks.options()) as client:

            async def is_learned() -> bool:
                return await served_accuracy(client) > 0.9

            await eventually(is_learned, "all classes are served", 60.0)
        await eventually(
            lambda: all(learning(local, n)["exchange"]["accepted"] > 3 for n in nodes),
            "both take the other's deltas",
        )
        assert local.server is not None
        assert [line for line in local.server.log.splitlines() if "iolation" in line] == []


class Tap:
    """A proxy in front of a server; it keeps every byte that its clients send."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = bytearray()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        try:
            yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, outer, self.sent))
                group.create_task(self._pump(inner, writer, bytearray()))
        except* OSError:
            pass  # either side went away
        finally:
            outer.close()
            writer.close()
            self._tasks.discard(task)

    @staticmethod
    async def _pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while data := await reader.read(1 << 16):
            kept += data
            writer.write(data)
            await writer.drain()
        writer.close()


def forms(array: np.ndarray) -> list[bytes]:
    """The bytes of an array in each datatype that could carry it."""
    kinds = [np.float16, np.float32, np.float64]
    if array.dtype.kind in "iu":
        kinds = [np.uint8, np.int16, np.int32, np.int64, np.float32]
    return [array.astype(kind).tobytes() for kind in kinds]


def found(private: list[np.ndarray], traffic: bytes) -> list[int]:
    """Which of the arrays lie in the traffic."""
    return [i for i, array in enumerate(private) if any(f in traffic for f in forms(array))]


async def test_no_sample_label_or_feature_leaves_a_learner() -> None:
    images, labels = part(2, 5)
    frozen = frozen_part()
    features = frozen.features({"image": images})
    frozen.close()
    async with mesh_of(shm=False) as local:
        result = split_fresh()
        await push(local, result.manifest.to_json(), result.files)
        tap = Tap(int(local.url.rpartition(":")[2]))
        everything = bytearray()
        spy: Client = await nats.connect(local.url)

        async def overhear(message: Any) -> None:
            everything.extend(message.data)

        await spy.subscribe(">", cb=overhear)
        async with tap.listening() as url:
            learners = [
                local.start("learner", MODEL, "--nats", url, "--node", name, *QUICK)
                for name in ("learner-a", "learner-b")
            ]
            await local.ready(READY)
            await eventually(
                lambda: all("rounds" in learning(local, node) for node in learners),
                "both learners have their model",
            )
            half = len(labels) // 2
            for name, rows in (("learner-a", slice(half)), ("learner-b", slice(half, None))):
                inputs = {"image": images[rows]}
                await local.mesh.teach(MODEL, inputs, labels[rows], node=name)
            await eventually(
                lambda: (
                    all(learning(local, node).get("rounds", 0) > 15 for node in learners)
                    and any(learning(local, node).get("minted", 0) > 1 for node in learners)
                ),
                "they have exchanged deltas and minted weight versions",
            )
            # The check can fail: a request that carries a sample is found in the same traffic.
            async with swarm.connect(url, local.name, shm=False) as client:
                public = digits_heldout()[0][:1]
                with pytest.raises(swarm.SwarmError):
                    await client.infer(MODEL, {"image": public}, 0.3)
            sent = bytes(tap.sent)
        await spy.close()
    assert f"PUB {local.mesh.subjects.root}.deltas.fresh.learner-a".encode() in sent
    assert b"tensors.fresh.1." in sent
    private = [*images, *features, labels[:half], labels[half:], labels[:20]]
    assert found([public[0]], sent) == [0]
    for traffic in (sent, bytes(everything)):
        assert len(traffic) > 10_000
        assert found(private, traffic) == []
