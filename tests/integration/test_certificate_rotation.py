"""Certificates of a mesh that serves under load are rotated, their authority too."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import Commands
from support.meshes import READY, Load, split_digits
from support.waiting import eventually

import swarm
from nodes.access import AccessOptions
from nodes.up.embedded_server import EmbeddedServer
from nodes.versions.lanes import lanes_maker
from swarm.security.authority.authority import SYSTEM_USER, Authority
from swarm.security.authority.certificates import read_certificate
from swarm.security.authority.server_conf import operator_conf, tls_conf

pytestmark = [pytest.mark.integration, pytest.mark.processes]
HOSTS = ["127.0.0.1", "localhost"]


@dataclass
class Site:
    """An authority, the server that it has written, and who is on it."""

    authority: Authority
    server: EmbeddedServer
    folder: Path

    def access(self, name: str, role: str) -> AccessOptions:
        """Credentials and a certificate of this name; one certificate where it has one already."""
        self.authority.add(name, role, [] if role == "operator" else ["digits"])
        return self._with_certificate(name, self.authority.credentials(name))

    def system(self) -> AccessOptions:
        return self._with_certificate(SYSTEM_USER, self.authority.credentials(SYSTEM_USER))

    def _with_certificate(self, name: str, credentials: Path) -> AccessOptions:
        users = self.authority.directory / "users"
        ca, cert, key = self.authority.certificates.issue_client(users, name)
        return AccessOptions(
            credentials=str(credentials), tls_ca=str(ca), tls_cert=str(cert), tls_key=str(key)
        )

    async def certificate_shown(self) -> str:
        """The serial number of the certificate that the server shows now."""
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        context.load_cert_chain(
            self.authority.directory / "users" / "system.pem",
            self.authority.directory / "users" / "system.key",
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            await reader.readline()
            await writer.start_tls(context, server_hostname="127.0.0.1")
            return str(writer.get_extra_info("peercert")["serialNumber"]).lower().lstrip("0")
        finally:
            writer.transport.abort()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = Authority.create(tmp_path / "auth", "default")
    folder = tmp_path / "server"
    authority.certificates.make()
    ca, cert, key = authority.certificates.issue_server(folder, HOSTS)
    authority.remember_server(folder)
    more = operator_conf(authority, str(folder / "jwt")) + tls_conf(cert, key, ca, mutual=True)
    async with EmbeddedServer(more=more) as server:
        yield Site(authority, server, folder)


@pytest.mark.benchmark
async def test_certificates_and_their_authority_are_rotated_under_load_without_a_lost_request(
    site: Site, run: Commands
) -> None:
    where = ("--auth", str(site.authority.directory), "--json")
    url, result = site.server.url, split_digits(stages=2)
    pid = ("--pid-file", str(site.server.pid_file))
    system = site.system().arguments()[2:]
    reconnect = ("--reconnect", "--nats", url, *system)

    async def certs(*flags: str) -> dict[str, object]:
        command = run.start("nodes.cli.main", "auth", "certs", *where, *flags)
        assert await asyncio.to_thread(command.wait, 30.0) == 0, command.stderr
        return dict(json.loads(command.stdout))

    operator = site.access("ops", "operator")
    async with swarm.connect(url, **operator.options()) as mesh:
        registry = mesh.registry
        manifest = result.manifest.to_json()
        await registry.push(manifest, result.files, prepare=lanes_maker(mesh))
        await registry.promote("digits", "1")
    nodes = [
        run.start(
            *("nodes.cli.node", "--role", role, "--model", "digits", "--nats", url, "--json"),
            *("--allow-unsigned", *site.access(f"{role}-a", role).arguments()),
        )
        for role in ("shard-1", "shard-2")
    ]
    for node in nodes:
        await eventually(lambda node=node: '"ready"' in node.stdout, f"ready: {node.stderr}", READY)

    asking = site.access("asks", "requester")
    async with swarm.connect(url, **asking.options()) as mesh:
        load, rotated = Load(mesh, 25, budget=15.0), asyncio.Event()

        async def ask_on() -> None:
            while not rotated.is_set():
                await load.run(20)

        asked = asyncio.create_task(ask_on())
        before = await site.certificate_shown()
        first = await certs("--rotate", *pid, *reconnect)
        after = await site.certificate_shown()
        assert before != after == read_certificate(site.folder / "server.pem").serial
        assert f"{len(nodes) + 1} connections" in str(first["told"])
        await certs("--new-authority", *pid)
        changed = await certs("--rotate", *pid, *reconnect)
        assert changed["authority"] != first["authority"]
        await certs("--finish", *pid, *reconnect)
        rotated.set()
        await asked
        load.check(len(load.sent_at))
        assert mesh.link.reconnects == 3
        assert mesh.link.refusal is None
    for node in nodes:
        assert node.process.poll() is None, node.stderr
