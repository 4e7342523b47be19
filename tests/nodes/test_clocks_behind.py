"""A node that is not admitted: it waits for a clock that is behind, and ends for all else."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from support.waiting import GENEROUS, eventually

from nodes.access import AccessOptions
from nodes.config import NodeConfig
from nodes.connection.connection import Connection
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import NotAdmitted, NotYetValid
from swarm.security.authority.authority import Authority
from swarm.security.authority.claims import credentials_text
from swarm.security.authority.keys import AuthorityKey
from swarm.security.authority.server_conf import operator_conf, tls_conf
from swarm.security.nkey import ACCOUNT
from swarm.tasks import end_all

pytestmark = pytest.mark.integration
HOST = "127.0.0.1"
YEAR, DAY = timedelta(days=365), timedelta(days=1)


def move(authority: Authority, cert: Path, by: timedelta) -> None:
    """Issue a certificate anew, valid from a day before `by` from now until a day after it."""
    key = serialization.load_pem_private_key(
        (authority.certificates.folder / "ca.key").read_bytes(), None
    )
    old = x509.load_pem_x509_certificate(cert.read_bytes())
    middle = datetime.now(UTC) + by
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    builder = builder.not_valid_before(middle - DAY).not_valid_after(middle + DAY)
    signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def move_credentials(authority: Authority, by: timedelta) -> None:
    """Issue the user's JWT anew, valid from a day before `by` from now until a day after it."""
    path = authority.credentials("ops")
    lines = path.read_text().splitlines()
    jwt = next(line for line in lines if line.startswith("ey"))
    seed = next(line for line in lines if line.startswith("SU"))
    header, claims, _ = jwt.split(".")
    body = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    middle = time.time() + by.total_seconds()
    body |= {"nbf": int(middle - 86400), "exp": int(middle + 86400)}
    claims = base64.urlsafe_b64encode(json.dumps(body).encode()).rstrip(b"=").decode()
    issuer = AuthorityKey.read(authority.directory / "keys" / "operator.1.seed", ACCOUNT)
    signature = issuer.sign(f"{header}.{claims}".encode())
    encoded = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    path.write_text(credentials_text(f"{header}.{claims}.{encoded}", seed))


class Site:
    """An authority, the files of a server, and those of a client."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder / "auth", "default")
        self.authority.certificates.make()
        self.authority.add("ops", "operator", [])
        certificates = self.authority.certificates
        self.ca, self.cert, self.key = certificates.issue_server(folder / "server", [HOST])
        _, self.own, self.own_key = certificates.issue_client(folder / "client", "ops")
        self.folder = folder
        self.mutual = False

    def server(self) -> EmbeddedServer:
        users = operator_conf(self.authority, str(self.folder / "jwt"))
        tls = tls_conf(self.cert, self.key, self.ca, mutual=self.mutual)
        return EmbeddedServer(more=users + tls)

    def connection(self, url: str) -> Connection:
        more = {"tls_cert": str(self.own), "tls_key": str(self.own_key)} if self.mutual else {}
        access = AccessOptions(str(self.authority.credentials("ops")), tls_ca=str(self.ca), **more)
        return Connection(NodeConfig("gateway", "", nats=url, access=access, shm=False))


def server_later(site: Site) -> None:
    move(site.authority, site.cert, YEAR)


def server_expired(site: Site) -> None:
    move(site.authority, site.cert, -YEAR)


def other_name(site: Site) -> None:
    site.ca, site.cert, site.key = site.authority.certificates.issue_server(
        site.folder / "named", ["elsewhere"]
    )


def other_authority(site: Site) -> None:
    other = Authority.create(site.folder / "other", "default").certificates
    other.make()
    _, site.cert, site.key = other.issue_server(site.folder / "foreign", [HOST])


def credentials_later(site: Site) -> None:
    move_credentials(site.authority, YEAR)


def credentials_expired(site: Site) -> None:
    move_credentials(site.authority, -YEAR)


def own_later(site: Site) -> None:
    site.mutual = True
    move(site.authority, site.own, YEAR)


def own_expired(site: Site) -> None:
    site.mutual = True
    move(site.authority, site.own, -YEAR)


async def refusal(site: Site) -> NotAdmitted:
    """Why a node ended, or what it waits for."""
    async with site.server() as server:
        connection, stop = site.connection(server.url), asyncio.Event()
        background: set[asyncio.Task[Any]] = set()

        def own(work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
            background.add(task := asyncio.create_task(work, name=name))
            return task

        connecting = asyncio.create_task(connection.connect(stop, own))
        await eventually(lambda: connecting.done() or connection.mesh.link.refusal is not None)
        found = connection.mesh.link.refusal
        stop.set()
        try:
            async with asyncio.timeout(GENEROUS):
                assert not await connecting, "it is admitted"
            assert found is not None
            return found
        except NotAdmitted as error:
            return NotAdmitted(f"ended: {error}")
        finally:
            await connection.close()
            await end_all(background)


@pytest.mark.parametrize(
    ("fault", "waits", "words"),
    [
        (server_later, True, "not yet valid by this device's clock"),
        (credentials_later, True, "they are valid from"),
        (own_later, True, "set the clock that is wrong"),
        (server_expired, False, "has expired by this device's clock"),
        (credentials_expired, False, "they expired on"),
        (own_expired, False, "it has ended"),
        (other_name, False, "another server's"),
        (other_authority, False, "not trusted by"),
    ],
)
async def test_a_node_waits_for_a_clock_that_is_behind_and_ends_for_other_refusals(
    tmp_path: Path, fault: Callable[[Site], None], waits: bool, words: str
) -> None:
    site = Site(tmp_path)
    fault(site)
    found = await refusal(site)
    assert words in str(found)
    assert str(found).startswith("ended: ") is not waits
    assert isinstance(found, NotYetValid) is waits
