"""A composition's requests are on record with what their parts made, and run again bit by bit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import said
from support.compositions import RICH, compose, composed_mesh, small
from support.meshes import digits, dismiss
from support.waiting import eventually

import swarm
from nodes.records.recorded import recorded
from nodes.records.recording import Recording, RecordLimits
from nodes.stage.server import StageServer
from nodes.up.mesh import LocalMesh
from shards.runtimes.load import load_stage
from swarm.records.record import digest_of, parse
from swarm.records.stream import extent_of, read_stream
from swarm.wire.messages import Features

pytestmark = [pytest.mark.integration, pytest.mark.processes]

FLAGS = ("--audit", "--max-batch", "1")
PARTS = {"label", "views", "each", "one", "fast", "mean", "small"}  # that each answer comes from


@asynccontextmanager
async def recording(local: LocalMesh, requests: int) -> AsyncIterator[None]:
    """Behind the block, in which so many requests are asked, they are recorded."""
    taken = Recording(local.mesh.link, local.mesh.subjects, "cascade", "1", 1.0)
    await taken.start(RecordLimits())
    yield
    await eventually(lambda: taken.kept == requests, "they are kept")
    await taken.stop()


async def on_record(local: LocalMesh, answers: list[swarm.Result]) -> dict[str, Mapping[str, Any]]:
    """The audit of these answers, by their ids."""

    async def all_there() -> dict[str, Mapping[str, Any]] | None:
        found = await recorded(local.mesh.link, local.mesh.subjects, "cascade")
        told = {each.id: each.audit for each in found if each.audit}
        return told if told.keys() >= {answer.id for answer in answers} else None

    return await eventually(all_there, "each answer is on record")


async def records_of(local: LocalMesh, model: str, count: int) -> list[dict[str, Any]]:
    """The audit's records of a model, once there are so many."""

    async def all_there() -> list[dict[str, Any]] | None:
        stream = local.mesh.subjects.stream_of("audit")
        extent = await extent_of(local.mesh.link, stream)
        assert extent is not None
        stored = [parse(e.data) async for e in read_stream(local.mesh.link, stream, extent)]
        found = [record for record in stored if record.get("model") == model]
        return found if len(found) >= count else None

    return await eventually(all_there, f"{count} requests of {model} are on record")


async def replayed(local: LocalMesh, *words: str) -> tuple[int | None, dict[str, Any]]:
    where = ("--nats", local.url, "--mesh", local.name, "--json")
    told = await asyncio.to_thread(said, "replay", *words, *where)
    return told.code, json.loads(told.stdout)


async def test_a_composition_runs_again_to_the_same_bits_part_by_part(tmp_path: Path) -> None:
    images = digits()[0]
    async with composed_mesh(tmp_path, flags=FLAGS, shm=False) as local:
        async with (
            recording(local, 8),
            swarm.connect(local.url, local.name, stored=True, agent="camera-7") as mesh,
        ):
            asks = [{"image": images[number : number + 1]} for number in range(8)]
            answers = [await mesh.infer("cascade", ask, 10.0) for ask in asks]
        audit = await on_record(local, answers)
        for ask, answer in zip(asks, answers, strict=True):
            record = audit[answer.id]
            assert record["input"] == digest_of(ask)
            assert record["output"] == digest_of(answer.outputs)
            (hop,) = record["hops"]
            assert hop["steps"].keys() >= PARTS
            made = {name: tensors for name, tensors in hop["steps"].items() if tensors}
            assert made["label"] in (made["small"], made.get("large"))
            assert "steps" not in answer.hops[0].as_json(), "hashes are for the record alone"
        of_parts = await records_of(local, "small", 16)
        # One record a request, by who asks or, until gossip has told of it, by the stage, too: the
        # server keeps the first. Either says who asked the composition. A request of a composition
        # that is worked on twice asks its parts twice.
        assert len({record["id"] for record in of_parts}) == len(of_parts)
        assert {record["by"] for record in of_parts} <= {"answerer", "stage"}
        assert {record["agent"] for record in of_parts} == {"camera-7"}
        code, told = await replayed(local, "--since", "1h")
        wrong = [(r.get("note"), s) for r in told["replays"] for s in r["steps"] if not s["equal"]]
        assert (code, wrong) == (0, [])
        for replay in told["replays"]:
            parts = {step["part"] for step in replay["steps"] if "part" in step}
            assert parts >= PARTS
            assert all(step["equal"] for step in replay["steps"])

        # Another version, whose bound is another one, decides by itself.
        await compose(local, tmp_path, RICH.replace("below = 4.0", "below = 1e9"), version="2")
        code, told = await replayed(local, answers[0].id, "--version", "2", "--tolerance", "100")
        assert code == 0, told
        assert told["replays"][0]["version"] == "2"

        # Whoever may write the stream alters what was asked: the record of the audit disagrees.
        (request,) = await recorded(
            local.mesh.link, local.mesh.subjects, "cascade", request=answers[0].id
        )
        asked: Features = request.stages[1]
        asked.tensors = {"image": images[40:41]}
        subject = f"{local.mesh.subjects.root}.record.cascade.1.{answers[0].id}.1"
        await local.mesh.link.request(subject, b"".join(map(bytes, asked.parts())), 5.0)
        code, told = await replayed(local, answers[0].id)
        assert (code, told["equal"]) == (1, False)
        wrong = {step.get("part", "") for step in told["replays"][0]["steps"] if not step["equal"]}
        assert {"", "small", "views", "label"} <= wrong


class Liar:
    """A stage that answers one more than it should."""

    def __init__(self, honest: Any) -> None:
        self._honest = honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def run(self, *given: Any) -> dict[str, np.ndarray]:
        return {name: made + 1 for name, made in self._honest.run(*given).items()}

    def run_batch(self, *given: Any) -> list[dict[str, np.ndarray]]:
        return [
            {name: made + 1 for name, made in each.items()}
            for each in self._honest.run_batch(*given)
        ]


async def test_a_replay_names_the_part_whose_node_has_lied(tmp_path: Path) -> None:
    """A hostile node answers for `small`; the node of the composition cannot know it."""
    async with composed_mesh(tmp_path, flags=FLAGS, shm=False) as local:
        await dismiss(local, [n for n in local.supervisor.nodes if "small" in n.arguments])
        info = await local.mesh.model("small")
        result = small()
        honest = load_stage(result.manifest, 1, result.files.__getitem__)
        liar = StageServer(local.mesh.routes_for(info), info, 1, "liar", Liar(honest))
        serving = asyncio.create_task(liar.source.run())
        try:
            async with recording(local, 1):
                image = {"image": digits()[0][:1]}
                async with swarm.connect(local.url, local.name, stored=True) as mesh:
                    answer = await mesh.infer("cascade", image, 20.0)
            await on_record(local, [answer])
        finally:
            await liar.drain()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            liar.close()
        code, told = await replayed(local, answer.id)
        assert code == 1
        steps = {step.get("part", ""): step["equal"] for step in told["replays"][0]["steps"]}
        assert steps["views"], "the composition's own operator is as it was"
        assert not steps["small"]
        assert not steps["each"]
        assert not steps["mean"]
        assert not steps[""]
