"""Under rights: whoever hears what the roles may hear learns no key, and takes and ends nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio
from support.meshes import mesh_of
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh
from swarm.errors import PermissionDenied, SwarmError
from swarm.language.keys import name_of
from swarm.link import LinkMessage

from .language import MODEL, prompt, tiny, undisturbed

pytest.importorskip("swarm.records", reason="the feature `records` is not there")
from swarm.records.stream import ensure_audit, extent_of, read_stream

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.benchmark,
    pytest.mark.asyncio(loop_scope="session"),
]

TOKENS = 250
HEARS = ("status.>", "events.*", "audit.*", "results.*", "config.>", "guards.*.*.*", "server")
THIEVES = ("requester", "gateway", "dashboard", "operator", "edge", "learner", "shard-2")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def secured() -> AsyncIterator[LocalMesh]:
    roles = ("shard-1", "shard-2", "shard-3")
    async with mesh_of(tiny(), *roles, flags=("--audit",), secure=True) as local:
        await ensure_audit(local.mesh.link, local.mesh.subjects)
        yield local


async def test_no_role_hears_a_key_and_none_but_the_key_opens_a_session(
    secured: LocalMesh, caplog: pytest.LogCaptureFixture
) -> None:
    local = secured
    caplog.set_level(logging.DEBUG)
    assert local.rights is not None
    root, heard = local.mesh.subjects.root, list[LinkMessage]()
    async with AsyncExitStack() as stack:
        meshes = {}
        for role in ("victim", *THIEVES):
            access = local.rights.issue("requester" if role == "victim" else role, MODEL)
            connected = swarm.connect(local.url, mesh=local.name, agent=role, **access.options())
            meshes[role] = await stack.enter_async_context(connected)
            for subject in HEARS:
                with suppress(SwarmError):
                    meshes[role].link.subscribe(f"{root}.{subject}", heard.append)
        victim = meshes.pop("victim").generate(MODEL, prompt(0), max_tokens=TOKENS, budget=60.0)
        told: dict[str, list[LinkMessage]] = {role: [] for role in meshes}
        made: list[int] = []
        async for token in victim:
            made.append(token.token)
            if len(made) == 5:
                for role, mesh in meshes.items():
                    steal(mesh, victim.request.session, told[role])
        assert made == undisturbed(0, TOKENS)
        may_ask = {"requester", "gateway"}
        await eventually(lambda: all(told[role] for role in may_ask), "who may ask is answered")
        for role, messages in told.items():
            documents = [json.loads(bytes(each.data)) for each in messages if each.data]
            assert {doc["status"] for doc in documents} == (
                {"PERMISSION_DENIED"} if role in may_ask else set()
            ), role
        session, key = victim.request.session, victim.request.key
        records: list[bytes] = []

        async def recorded() -> bool:
            extent = await extent_of(local.mesh.link, local.mesh.subjects.stream_of("audit"))
            assert extent is not None
            stream = read_stream(local.mesh.link, local.mesh.subjects.stream_of("audit"), extent)
            records[:] = [bytes(each.data) async for each in stream]
            return session.encode() in b"".join(records)

        await eventually(recorded, "the audit tells of the session")
        secrets = (key, name_of(key))
        logs = (
            b"".join(records).decode()
            + "".join(local.tail(node) for node in local.supervisor.nodes)
            + caplog.text
        )
        assert local.server is not None
        assert not any(each in said(heard) + logs + local.server.log for each in secrets)
        local.mesh.link.publish(local.mesh.subjects.status_request)


def said(heard: list[LinkMessage]) -> str:
    return "".join(bytes(message.data).decode(errors="replace") for message in heard)


def steal(mesh: swarm.Mesh, session: str, told: list[LinkMessage]) -> None:
    """Go on with it, end it, and say to nodes that it has ended, as far as the role may."""
    inbox = mesh.link.expect(told.append)
    wish = {"session": session, "epoch": 9, "prompt": prompt(3)}
    for subject, data in (
        (mesh.subjects.under("generate", model=MODEL), json.dumps(wish).encode()),
        (mesh.subjects.cancel(MODEL, "1"), session.encode()),
    ):
        with suppress(PermissionDenied):
            mesh.link.publish(subject, data, inbox)
