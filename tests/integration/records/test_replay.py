"""What the mesh saw is kept where somebody asks for it, and runs again bit by bit elsewhere."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from support.commands import Command, Commands
from support.meshes import READY, add_model, digits, split_digits
from support.waiting import eventually

import swarm
from nodes.records.recorded import recorded
from nodes.records.recording import Recording, RecordLimits
from nodes.records.session import ReplaySession, replay_other, replay_same
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.cameras import Task, document
from shards.cameras.wish import Wish
from shards.split.split import split
from swarm.link import jetstream
from swarm.records.subjects import RecordSubjects
from swarm.subjects import api

sys.path.append(str(Path(__file__).parents[2] / "shards"))
sys.path.append(str(Path(__file__).parents[2] / "shards" / "cameras"))
from detector_graphs import ssd

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest.fixture
async def stored_mesh() -> Any:
    async with local_mesh(shm=False) as local:
        first = split_digits("1")
        await push(local, first.manifest.to_json(), first.files)
        for role in ("shard-1", "shard-2", "shard-3"):
            local.start(role, "digits", "--audit", "--max-batch", "1")
        await local.ready(READY)
        yield local


async def test_recorded_requests_run_again_to_the_same_bits(
    stored_mesh: LocalMesh, run: Commands
) -> None:
    local = stored_mesh
    lanes = local.mesh.subjects.stream("digits", "1", 3)

    async def republished() -> bool:
        info = await jetstream.call(local.mesh.link, api("STREAM.INFO", lanes))
        return "republish" in info["config"]

    def start(*words: str) -> Command:
        arguments = (*words, "--nats", local.url, "--json")
        return run.start("nodes.cli.main", *arguments, env={"SWARM_TRUST": local.trusted})

    async def end(command: Command) -> dict[str, Any]:
        await asyncio.to_thread(command.wait, 60)
        assert command.stdout, command.stderr
        return dict(json.loads(command.stdout))

    recording = start("record", "digits", "--for", "5m")
    await eventually(republished, "it is recorded", READY)
    images = digits()[0]
    async with swarm.connect(local.url, agent="robot-7", stored=True) as mesh:
        answers = [await mesh.infer("digits", {"image": images[i : i + 1]}, 10.0) for i in range(3)]
    kept = RecordSubjects.of(local.mesh.subjects).record_stream("digits")

    async def all_kept() -> bool:
        info = await jetstream.call(local.mesh.link, api("STREAM.INFO", kept))
        return int(info["state"]["messages"]) == 9

    await eventually(all_kept, "all stages are kept")
    recording.signal(signal.SIGINT)
    told = await end(recording)
    assert (told["requests"], told["messages"], told["missed"]) == (3, 9, 0)
    assert not await republished(), "nothing is copied once a recording has ended"

    command = start("replay", "--since", "1h")
    told = await end(command)
    assert command.process.returncode == 0, told
    assert [replay["id"] for replay in told["replays"]] == [answer.id for answer in answers]
    for replay in told["replays"]:
        assert all(step["node"].startswith(f"shard-{step['stage']}") for step in replay["steps"])
        # The third stage's answer is not in a lane: its hash in the audit says that it is equal.
        assert [(s["stage"], s["equal"]) for s in replay["steps"]] == [
            (1, True),
            (2, True),
            (3, True),
        ]

    # Another version of the same weights decides the same, beside other bits or equal ones.
    second = split_digits("2", stages=2)
    await push(local, second.manifest.to_json(), second.files)
    command = start(*("replay", answers[0].id, "--version", "2", "--tolerance", "1e-4"))
    told = await end(command)
    assert command.process.returncode == 0, told
    (replay,) = told["replays"]
    assert (replay["version"], replay["decides_otherwise"]) == ("2", False)
    assert [step["stage"] for step in replay["steps"]] == [1, 2]
    assert replay["steps"][-1]["compared"]


def png_of(image: np.ndarray) -> bytes:
    done, data = cv2.imencode(".png", image[..., ::-1])
    assert done
    return data.tobytes()


async def test_a_detectors_versions_are_compared_by_the_objects_that_they_find() -> None:
    """Its question came as a picture, and is recorded so."""

    def detector(version: str, stages: int, seed: int = 0) -> Any:
        wish = Wish("detect", decode="ssd", threshold=0.2)
        file = ssd((64, 48), 300, 5, seed=seed)
        return split(file, name="net", version=version, stages=stages, profile=False, addition=wish)

    first = detector("1", 2)
    task = Task.of(first.manifest.parts.get("task"))
    assert task.baked
    async with local_mesh(shm=False) as local:
        await add_model(local, first)
        for role in ("shard-1", "shard-2"):
            local.start(role, "net", "--audit", "--max-batch", "1")
        await local.ready(READY)
        recording = Recording(local.mesh.link, local.mesh.subjects, "net", "1", 1.0)
        await recording.start(RecordLimits())
        picture = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
        async with swarm.connect(local.url, stored=True) as mesh:
            sent = swarm.Picture(png_of(picture))
            answer = await mesh.infer("net", {task.preprocess.input: sent}, 10.0)
        await eventually(lambda: recording.kept == 2, "both stages are kept")
        await recording.stop()
        found = document(task.read(answer.outputs, picture.shape))
        for other in (detector("2", 1), detector("3", 1, seed=1)):
            await push(local, other.manifest.to_json(), other.files)
        (request,) = await recorded(local.mesh.link, local.mesh.subjects, "net")
        sessions = [await ReplaySession.open(local.mesh, "net", version) for version in "123"]
        try:
            then, same, another = sessions
            replay = await replay_same(then, request)
            assert replay.equal(0.0)
            assert replay.compared == 2
            replay = await replay_other(same, then, request)
            assert replay.otherwise is False
            assert replay.found is not None
            assert replay.found.document() == found
            assert found["detections"]
            replay = await replay_other(another, then, request)
            assert replay.otherwise is True
        finally:
            for session in sessions:
                session.close()
