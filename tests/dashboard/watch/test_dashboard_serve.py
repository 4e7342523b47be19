"""Who may reach the page, and who may act by it: over real sockets, a real server, real rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fleets import DashboardProcess, dashboard, fetch, linked, publish_status
from statuses import a_status
from support.meshes import mesh_of, split_digits
from support.waiting import eventually

from nodes.up.mesh import LocalMesh, push
from nodes.watch.dashboard.run import DashboardPlace
from swarm.errors import InvalidArgument
from swarm.subjects import api

pytest.importorskip("swarm.records", reason="the feature `records` is not there")
from swarm.records.stream import ensure_audit

pytestmark = pytest.mark.integration
in_session = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("place", "acts", "remedy"),
    [
        (DashboardPlace("0.0.0.0"), False, "--open-http"),
        (DashboardPlace("10.0.0.1", open_http=True), True, "--https-cert"),
        (DashboardPlace("::"), False, "--https-cert"),
        (DashboardPlace(certificate="cert.pem"), False, "--https-key"),
    ],
)
def test_a_place_that_shows_the_fleet_to_a_network_by_mistake_is_refused(
    place: DashboardPlace, acts: bool, remedy: str
) -> None:
    with pytest.raises(InvalidArgument, match=remedy):
        place.check(acts)


@pytest.mark.parametrize(
    "place",
    [
        DashboardPlace(),
        DashboardPlace("localhost"),
        DashboardPlace("::1"),
        DashboardPlace("0.0.0.0", open_http=True),
        DashboardPlace("0.0.0.0", certificate="cert.pem", key="key.pem"),
    ],
)
def test_loopback_and_tls_and_what_is_meant_are_served(place: DashboardPlace) -> None:
    place.check(acts=False)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def closed_mesh() -> AsyncIterator[LocalMesh]:
    """A server with users and TLS, two versions of a model, an audit; no node."""
    async with mesh_of(name="default", secure=True) as local:
        for version in ("1", "2"):
            result = split_digits(version, stages=2)
            await push(local, result.manifest.to_json(), result.files)
        await ensure_audit(local.mesh.link, local.mesh.subjects)
        yield local


def as_role(local: LocalMesh, role: str) -> list[str]:
    assert local.rights is not None
    return local.rights.access(f"{role}-page", role).arguments()


async def until_told(process: DashboardProcess, holds: Any, what: str) -> dict[str, Any]:
    """The picture, as soon as it is as `holds` wants it."""
    found: dict[str, Any] = {}

    async def told() -> bool:
        found.update(json.loads((await asyncio.to_thread(fetch, f"{process.root}api/picture"))[2]))
        return bool(holds(found))

    await eventually(told, what)
    return found


@in_session
async def test_a_dashboards_credentials_are_enough_to_read_and_its_page_cannot_act(
    closed_mesh: LocalMesh, tmp_path: Path
) -> None:
    arguments = as_role(closed_mesh, "dashboard")
    with dashboard(closed_mesh.url, tmp_path, *arguments) as process:
        await until_told(process, lambda p: p["link"]["connected"], "a connection")
        assert closed_mesh.rights is not None
        access = closed_mesh.rights.access("shard-1-x", "shard-1", "digits")
        async with linked(closed_mesh.url, **access.options()) as link:
            publish_status(link, a_status("shard-1-x-1"))
            await link.flush()
        found = await until_told(process, lambda p: served(p) != {}, "desired state")
        assert served(found) == {"2": 100.0}
        assert "Not known" not in found["verdict"]["text"]
        status, headers, body = fetch(f"{process.root}api/act", {"act": "rollback"})
        assert status == 403
        assert "--allow-actions" in json.loads(body)["error"]
        assert "script-src 'self'" in headers["content-security-policy"]
        # A name that somebody else points at this machine.
        assert fetch(process.root, host="evil.example")[0] == 400
        assert "Traceback" not in process.log.read_text()


@in_session
async def test_an_operators_page_acts_with_its_token_only_and_each_act_is_in_the_audit(
    closed_mesh: LocalMesh, tmp_path: Path
) -> None:
    arguments = [*as_role(closed_mesh, "operator"), "--allow-actions"]
    with dashboard(closed_mesh.url, tmp_path, *arguments, trust=closed_mesh.trusted) as process:
        token = process.url.partition("#token=")[2]
        assert len(token) > 20
        await until_told(process, lambda p: p["link"]["connected"], "a connection")
        act = {"act": "promote", "model": "digits", "version": "1"}
        assert fetch(f"{process.root}api/act", act)[0] == 401
        assert fetch(f"{process.root}api/act", act, authorization="Bearer guess")[0] == 401
        right = {"authorization": f"Bearer {token}"}
        form = fetch(f"{process.root}api/act", act, content_type="text/plain", **right)
        assert form[0] == 415, "another page may send such a form without asking"
        status, _, body = await asyncio.to_thread(fetch, f"{process.root}api/act", act, **right)
        assert status == 200, body
        assert json.loads(body)["audit"] == "recorded"
        for bad in ({"act": "drain", "node": "../x"}, {"act": "destroy"}, [], {"act": "drain"}):
            assert fetch(f"{process.root}api/act", bad, **right)[0] == 409, bad
        missing = {"act": "promote", "model": "digits", "version": "9"}
        status, _, body = fetch(f"{process.root}api/act", missing, **right)
        assert (status, json.loads(body)["status"]) == (409, "NOT_FOUND")
    assert await closed_mesh.mesh.registry.served("digits") == "1"
    record = await last_act(closed_mesh)
    assert (record["act"], record["model"], record["version"]) == ("promote", "digits", "1")
    assert record["browser"] == "127_0_0_1"
    await closed_mesh.mesh.registry.promote("digits", "2")  # as it was found


def served(picture: dict[str, Any]) -> dict[str, float]:
    """Shares of the first model's versions."""
    return dict(picture["models"][0]["serve"]) if picture["models"] else {}


async def last_act(local: LocalMesh) -> dict[str, Any]:
    """The last act on record."""
    subjects = local.mesh.subjects
    subject = api(
        "DIRECT.GET",
        subjects.stream_of("audit"),
        subjects.under("audit", agent="operator"),
    )
    message = await local.mesh.link.request(subject, b"", 2.0, from_server=True)
    return dict(json.loads(bytes(message.data)))
