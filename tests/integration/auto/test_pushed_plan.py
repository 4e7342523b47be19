"""A plan for the mesh's own nodes: made from what they tell, pushed by a person, taken in under
load; one that does not fit changes nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.auto_meshes import alive, newest, start_auto, until_settled
from support.meshes import close, digits, mesh_of, split_digits
from typer.testing import CliRunner, Result

from nodes.cli.main import app
from nodes.up.mesh import LocalMesh
from shards.manifest import write_dir
from swarm.auto.plan_store import PlanStore, StoredPlan

pytest.importorskip("nodes.records", reason="the feature `records` is not there")
from swarm.records.record import parse
from swarm.records.stream import extent_of, read_stream

STAGES = 4
MEMORY = 30  # megabytes: three stages of the digits model
BUDGET = 10.0  # seconds


async def swarm(local: LocalMesh, *words: str) -> Result:
    """A command of a person, in a thread: the mesh goes on meanwhile."""
    more = ["--nats", local.url, "--mesh", local.name, "--json"]
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, *more])


async def ask(local: LocalMesh, until: asyncio.Event) -> int:
    """Requests one after the other, each with the right answer; how many there were."""
    images, expected = digits()
    count = 0
    while not until.is_set():
        n = count % len(images)
        result = await local.mesh.infer("digits", {"image": images[n : n + 1]}, BUDGET)
        assert close(result.outputs["logits"], expected[n : n + 1])
        count += 1
    return count


async def planned(local: LocalMesh) -> list[dict[str, Any]]:
    """The plans on record."""
    stream = local.mesh.subjects.stream_of("audit")
    extent = await extent_of(local.mesh.link, stream)
    assert extent is not None
    records = [parse(each.data) async for each in read_stream(local.mesh.link, stream, extent)]
    return [record for record in records if record.get("act") == "planned"]


def other_plan(document: dict[str, Any], cuts: list[list[str]], nodes: list[str]) -> dict[str, Any]:
    """The same model, cut behind its first stage, for these nodes."""
    stages = [{"devices": [node]} for node in nodes]
    return document | {"cuts": cuts[:1], "stages": stages}


@pytest.mark.benchmark
async def test_a_pushed_plan_is_taken_in_under_load_and_one_that_does_not_fit_changes_nothing(
    tmp_path: Path,
) -> None:
    model = split_digits(stages=STAGES)
    folder, file = str(tmp_path / "split"), tmp_path / "plan.json"
    write_dir(folder, model.manifest, model.files)
    async with mesh_of() as local:
        assert (await swarm(local, "model", "push", folder)).exit_code == 0
        for _ in range(2):
            start_auto(local, "digits", MEMORY, "--gossip", "local", "--audit")
        await local.ready()
        await until_settled(local, "the start")
        store = PlanStore(local.mesh.link, local.mesh.subjects)

        # What the mesh tells is what the plan is made from.
        made = await swarm(local, "model", "plan", "digits", "--devices", "mesh", "-o", str(file))
        assert made.exit_code == 0, made.stderr
        document = json.loads(file.read_text())
        nodes = {status["node"] for status in alive(local)}
        assert {row["name"]: row["times"] for row in document["devices"]} == dict.fromkeys(
            nodes, "measured"
        )
        assert {n for stage in document["stages"] for n in stage["devices"]} <= nodes

        # A person's plan, under load.
        before: StoredPlan = await store.read("digits", "1")
        assert before.plan is not None
        assert [(slot.first, slot.last) for slot in before.plan.slots] == [(1, 2), (3, 4)]
        ends = [[spec.name for spec in shard.sends] for shard in model.manifest.shards]
        swapped = [slot.node for slot in reversed(before.plan.slots)]
        file.write_text(json.dumps(other_plan(document, ends, swapped)))
        done = asyncio.Event()
        asking = asyncio.create_task(ask(local, done))
        pushed = await swarm(local, "model", "push", folder, "--plan", str(file), "--freeze")
        assert pushed.exit_code == 0, pushed.stderr
        number = json.loads(pushed.stdout)["plan"]["number"]
        assert number == before.plan.number + 1
        assert await local.until(lambda: newest(local).get("plan") == number, 10.0)
        await until_settled(local, "the pushed plan")
        done.set()
        assert await asking > 0
        assert newest(local)["slots"] == [[1, 1], [2, 4]]
        assert newest(local)["frozen"] is True
        holders = {tuple(s["plans"][0]["slot"]): s["node"] for s in alive(local)}
        assert holders == {(1, 1): swapped[0], (2, 4): swapped[1]}
        assert newest(local)["reason"].startswith("pushed by ")
        last = (await planned(local))[-1]
        assert (last["plan"], last["agent"]) == (number, "operator")
        assert last["why"].startswith("pushed by ")
        assert last["to"] == f"1-1 {swapped[0]}, 2-4 {swapped[1]}"

        # One that does not fit is refused whole.
        present = await store.read("digits", "1")
        for wrong, why in (
            (other_plan(document, ends, [swapped[0], "auto-gone"]), "no node of role auto is"),
            (document | {"source_sha256": "0" * 64}, "another model"),
        ):
            file.write_text(json.dumps(wrong))
            refused = await swarm(local, "model", "push", folder, "--plan", str(file))
            assert refused.exit_code == 1
            assert why in json.loads(refused.stdout)["error"]
        assert await store.read("digits", "1") == present
