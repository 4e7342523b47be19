"""`swarm auth rotate` is on record where the operator's credentials are in the folder of keys."""

from __future__ import annotations

import asyncio

import pytest
from support.commands import said
from support.meshes import mesh_of
from support.waiting import eventually

from swarm.link import jetstream
from swarm.records.stream import ensure_audit
from swarm.subjects import api

pytestmark = [pytest.mark.integration]


async def test_a_rotation_by_the_operators_own_file_reaches_the_audit() -> None:
    async with mesh_of(secure=True) as local:
        assert local.rights is not None
        link, subjects = local.mesh.link, local.mesh.subjects
        await ensure_audit(link, subjects)
        operator = local.rights.access("keeper", "operator")
        folder = local.rights.authority.directory
        words = ["--auth", str(folder), "--nats", local.url, *operator.arguments()]
        told = await asyncio.to_thread(said, "auth", "rotate", *words)
        assert "not in the audit" not in told.stderr
        assert told.code == 0, told.stderr

        async def on_record() -> bool:
            info = await jetstream.call(link, api("STREAM.INFO", subjects.stream_of("audit")))
            return bool(info["state"]["messages"])

        await eventually(on_record, "the rotation is on record")
