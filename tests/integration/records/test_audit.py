"""Who asked what is on record, once, and no record holds what was asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import numpy as np
import pytest
from nats.aio.client import Client
from support.commands import Command, Commands
from support.meshes import READY, digits, split_digits
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh, local_mesh, push
from swarm.link import LinkMessage
from swarm.records.record import digest_of, parse
from swarm.records.stream import StoredRecord, extent_of, read_stream
from swarm.security.identity import Identity

pytestmark = [pytest.mark.integration, pytest.mark.processes]

MARKER = 0x5EC2E7  # as a float's bits it stands in the input, and nowhere else


@pytest.fixture
async def audited() -> Any:
    async with local_mesh(shm=False) as local:
        first = split_digits("1")
        await push(local, first.manifest.to_json(), first.files)
        for role in ("shard-1", "shard-2", "shard-3"):
            local.start(role, "digits", "--audit")
        local.start("gateway", "", "--audit")
        await local.ready(READY)
        yield local


async def stored(local: LocalMesh) -> list[StoredRecord]:
    stream = local.mesh.subjects.stream_of("audit")
    extent = await extent_of(local.mesh.link, stream)
    if extent is None:
        return []
    return [each async for each in read_stream(local.mesh.link, stream, extent)]


async def records(local: LocalMesh, count: int) -> list[dict[str, Any]]:
    """All records, once there are `count` of them."""

    async def all_there() -> list[StoredRecord]:
        found = await stored(local)
        return found if len(found) >= count else []

    return [parse(each.data) for each in await eventually(all_there, f"{count} records")]


def marked() -> np.ndarray:
    image = digits()[0][:1].copy()
    image[0, 0, 0, :4] = np.full(4, MARKER, np.uint32).view(np.float32)
    return image


async def test_each_request_is_on_record_once_and_its_payload_nowhere(
    audited: LocalMesh, run: Commands, tmp_path: Path
) -> None:
    local = audited
    heard: list[bytes] = []
    extra = 0

    def hear(message: LinkMessage) -> None:
        # Questions and lanes carry payloads: that is what they are for.
        if not {"features", "infer"} & set(message.subject.split(".")):
            heard.append(bytes(message.data))

    local.mesh.link.subscribe(f"{local.mesh.subjects.root}.>", hear)
    image = marked()
    asks = [{"image": image}, *({"image": digits()[0][i : i + 1]} for i in range(1, 4))]
    async with swarm.connect(local.url, agent="robot-7", stored=True) as direct:
        answers = [await direct.infer("digits", ask, 5.0) for ask in asks]
        with pytest.raises(swarm.InvalidArgument, match="stored"):
            await direct.infer("digits", asks[0], 5.0, delivery="fast")
    plain: Client = await nats.connect(local.url)
    body = {
        "inputs": [
            {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": image.tolist()}
        ],
        "id": "my-own-id",
        "parameters": {"agent": "plain"},
    }
    try:
        subject = local.mesh.subjects.infer("digits")
        for _ in range(3):
            answer = json.loads((await plain.request(subject, json.dumps(body).encode(), 5)).data)
            assert "error" not in answer
        # Until gossip has told the last stage who answers, it records too, and the server keeps
        # the first of both.
        async with asyncio.timeout(20):
            while (found := await records(local, 7 + extra))[-1]["by"] != "answerer":
                await plain.request(subject, json.dumps(body).encode(), 5)
                extra += 1
        assert len({r["id"] for r in found}) == len(found) == 7 + extra
        body["inputs"][0]["name"] = "picture"  # type: ignore[index]
        answer = json.loads((await plain.request(subject, json.dumps(body).encode(), 5)).data)
        assert answer["status"] == "INVALID_ARGUMENT"
    finally:
        await plain.close()

    found = await records(local, 8 + extra)
    by_stage = {r["id"]: r for r in found if r["by"] == "stage"}
    assert by_stage.keys() >= {answer.id for answer in answers}
    assert {r["agent"] for r in found} == {"robot-7", "plain"}
    for ask, answer in zip(asks, answers, strict=True):
        record = by_stage[answer.id]
        assert (record["agent"], record["status"], record["version"]) == ("robot-7", "OK", "1")
        assert [hop["node"] for hop in record["hops"]] == [hop.node for hop in answer.hops]
        assert record["input"] == record["hops"][0]["received"] == digest_of(ask)
        assert record["output"] == digest_of(answer.outputs)
        assert len({hop["received"] for hop in record["hops"]}) == 3
    *_, good, bad = [r for r in found if r["by"] == "answerer"]
    assert (good["status"], bad["status"]) == ("OK", "INVALID_ARGUMENT")
    assert (good["agent"], good["client_id"]) == ("plain", "my-own-id")
    assert good["input"] == digest_of({"image": image})
    assert len(good["hops"]) == 3
    assert "output" not in bad

    # An operator's acts are on record too, and a whole audit is found to be whole.
    async def command(*words: str) -> Command:
        environment = {"SWARM_TRUST": local.trusted}
        started = run.start("nodes.cli.main", *words, "--nats", local.url, env=environment)
        await asyncio.to_thread(started.wait, 60)
        return started

    Identity.load_or_make(tmp_path / "operator.key")
    signed = ("--sign-with", str(tmp_path / "operator.key"))
    promoted = await command("model", "promote", "digits@1", *signed)
    assert promoted.process.returncode == 0, promoted.stderr
    acts = [r for r in await records(local, 9 + extra) if r["kind"] == "act"]
    assert [(r["act"], r["agent"], r["model"]) for r in acts] == [("promote", "operator", "digits")]
    verified = await command("audit", "verify", "--json")
    assert verified.process.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["records"] == 9 + extra

    # A file that lacks one record is found out.
    file = tmp_path / "audit.txt"
    assert (await command("audit", "export", str(file))).process.returncode == 0
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], *lines[5:]]) + "\n")
    broken = await command("audit", "verify", str(file))
    assert broken.process.returncode == 1
    assert "removed" in broken.stderr

    # Nothing that is told, logged or recorded holds the input.
    needle, bits = image.tobytes(), np.uint32(MARKER).tobytes() * 4
    logs = [path.read_bytes() for path in local.logs.glob("*.log")]
    everywhere = [*heard, *logs, *(each.data for each in await stored(local))]
    decimal = repr(float(np.uint32(MARKER).reshape(1).view(np.float32)[0])).encode()
    assert heard
    assert not [t for t in everywhere if needle in t or bits in t or decimal in t]
