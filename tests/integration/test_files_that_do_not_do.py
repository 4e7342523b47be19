"""Keys, credentials and certificates that do not do, against real servers: one line that names the
file and the remedy, and exit code 2."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nodes.announce import announce
from nodes.cli.main import app
from nodes.cli.node import node
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import BadKey, Unavailable
from swarm.link import Link, LinkOptions, jetstream
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf, tls_conf
from swarm.security.mesh_keys import make_mesh_key

pytestmark = pytest.mark.integration
HOSTS = ["127.0.0.1"]
HOURS = timedelta(hours=2)


@dataclass
class Site:
    """One authority and three servers: one asks for credentials and certificates, one is open, the
    certificate of one has ended two hours ago."""

    folder: Path
    authority: Authority
    mutual: EmbeddedServer
    open: EmbeddedServer
    late: EmbeddedServer

    def kept(self, source: Path, name: str, mode: int = 0o600) -> str:
        """A copy of a file, with other rights."""
        target = self.folder / name
        shutil.copy(source, target)
        target.chmod(mode)
        return str(target)

    def certificate(self, valid: timedelta = timedelta(days=1)) -> list[str]:
        """The flags of a client's certificate."""
        ca, cert, key = self.authority.certificates.issue_client(
            self.folder / "clients", "ops", valid
        )
        return ["--tls-ca", str(ca), "--tls-cert", str(cert), "--tls-key", str(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    authority = Authority.create(folder / "auth", "default")
    authority.certificates.make()
    authority.add("ops", "dashboard", [])
    users = operator_conf(authority, str(folder / "jwt"))
    ca, cert, key = authority.certificates.issue_server(folder / "good", HOSTS)
    mutual = EmbeddedServer(more=users + tls_conf(cert, key, ca, mutual=True))
    _, cert, key = authority.certificates.issue_server(folder / "late", HOSTS, -HOURS)
    late = EmbeddedServer(more=tls_conf(cert, key, ca, mutual=False))
    made = Site(folder, authority, mutual, EmbeddedServer(), late)
    servers = (made.mutual, made.open, made.late)
    for server in servers:
        asyncio.run(server.start())
    yield made
    for server in servers:
        asyncio.run(server.stop())


def credentials(site: Site) -> str:
    return str(site.authority.credentials("ops"))


def expired(site: Site) -> list[str]:
    past = Authority(site.authority.directory, clock=lambda: time.time() - 7200)
    past.add("gone", "dashboard", [], valid=3600.0)
    return ["--credentials", str(past.credentials("gone")), *site.certificate()]


def revoked(site: Site) -> list[str]:
    authority = Authority(site.authority.directory)
    authority.add("thief", "dashboard", [])
    kept = site.kept(authority.credentials("thief"), "thief.creds")
    authority.revoke("thief")
    files = site.certificate()
    options = LinkOptions(
        servers=(site.mutual.url,), tls_ca=files[1], tls_cert=files[3], tls_key=files[5]
    )
    asyncio.run(announce(authority, options))
    return ["--credentials", kept, *files]


def of_another_operator(site: Site) -> list[str]:
    other = Authority.create(site.folder / "other", "default")
    other.add("ops", "dashboard", [])
    return ["--credentials", str(other.credentials("ops")), *site.certificate()]


def other_authority(site: Site) -> list[str]:
    other = Authority.create(site.folder / "elsewhere", "default").certificates
    other.make()
    return ["--credentials", credentials(site), "--tls-ca", str(other.trusted)]


def without_certificate(site: Site) -> list[str]:
    return ["--credentials", credentials(site), *site.certificate()[:2]]


def ended_certificate(site: Site) -> list[str]:
    return ["--credentials", credentials(site), *site.certificate(-HOURS)]


def unreadable(site: Site) -> list[str]:
    return ["--credentials", str(site.folder), *site.certificate()]


def too_open(site: Site) -> list[str]:
    path = site.kept(Path(credentials(site)), "open.creds", 0o644)
    return ["--credentials", path, *site.certificate()]


def too_open_key(site: Site) -> list[str]:
    files = site.certificate()
    files[5] = site.kept(Path(files[5]), "open.key", 0o640)
    return ["--credentials", credentials(site), *files]


def seed_as_credentials(site: Site) -> list[str]:
    return ["--credentials", str(site.authority.seed("ops")), *site.certificate()]


def an_accounts_key(site: Site) -> list[str]:
    return ["--nkey", str(site.authority.directory / "keys" / "mesh.seed"), *site.certificate()]


def authority_only(site: Site) -> list[str]:
    return site.certificate()[:2]


def no_files(site: Site) -> list[str]:
    return []


ROWS: list[tuple[str, Callable[[Site], list[str]], str, str]] = [
    ("mutual", expired, "gone.creds", "they expired on"),
    ("mutual", revoked, "thief.creds", "`swarm auth add` issues new ones"),
    ("mutual", of_another_operator, "ops.creds", "of another operator"),
    ("mutual", other_authority, "ca.pem", "give the authority that issued it with --tls-ca FILE"),
    ("mutual", without_certificate, "certificate", "--tls-cert FILE --tls-key FILE"),
    ("mutual", ended_certificate, "ops.pem", "swarm auth certs --client NAME"),
    ("mutual", unreadable, "--credentials", "give a file that this user may read"),
    ("mutual", too_open, "open.creds", "chmod 600"),
    ("mutual", too_open_key, "open.key", "chmod 600"),
    ("mutual", seed_as_credentials, "ops.nk", "a bare seed is for --nkey"),
    ("mutual", an_accounts_key, "mesh.seed", "an identity's is needed"),
    ("open", authority_only, "offers no TLS", "leave out --tls-ca"),
    ("late", authority_only, "has expired by this device's clock", "set the clock"),
    ("mutual", no_files, "its certificate is not trusted", "--tls-ca FILE"),
]


@pytest.mark.parametrize(
    ("server", "flags", "named", "remedy"),
    ROWS,
    ids=[f"{row[0]}-{row[1].__name__}" for row in ROWS],
)
def test_a_file_that_does_not_do_is_one_line_with_the_remedy_and_exit_code_2(
    site: Site, server: str, flags: Callable[[Site], list[str]], named: str, remedy: str
) -> None:
    url = {"mutual": site.mutual, "open": site.open, "late": site.late}[server].url
    given = flags(site)
    result = CliRunner().invoke(app, ["model", "list", "--nats", url, *given])
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert named in lines[0]
    assert remedy in lines[0]


@pytest.mark.parametrize("flag", ["mesh-key", "model-key", "trust", "identity"])
def test_a_node_with_a_key_file_that_others_may_touch_ends_with_2_before_it_connects(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    make_mesh_key(path)  # 64 hexadecimal digits do for a model's key too
    path.chmod(0o666)
    value = f"file:{path}" if flag == "model-key" else str(path)
    nowhere = ["--nats", "nats://127.0.0.1:1"]
    code = node(["--role", "shard-1", "--model", "m", f"--{flag}", value, *nowhere], {})
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert str(path) in lines[0]
    assert "chmod" in lines[0]


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def test_two_hours_between_the_clocks_of_a_device_and_of_the_authority_do_no_harm(
    site: Site,
) -> None:
    ahead = Authority(site.authority.directory, clock=lambda: time.time() + 7200)
    ahead.add("early", "dashboard", [], valid=3600.0)
    files = site.certificate()
    options = LinkOptions(
        servers=(site.mutual.url,),
        credentials=str(ahead.credentials("early")),
        tls_ca=files[1],
        tls_cert=files[3],
        tls_key=files[5],
    )
    link = Link(options)
    running = asyncio.create_task(link.run())
    await link.ready(30.0)
    assert link.connected
    await link.close()
    await running


async def test_a_store_of_another_key_is_said_and_stays_as_it_is(tmp_path: Path) -> None:
    async def bucket(key: str) -> None:
        async with EmbeddedServer(store=tmp_path, store_key=key) as server:
            link = Link(LinkOptions(servers=(server.url,)))
            running = asyncio.create_task(link.run())
            await link.ready(30.0)
            await jetstream.ensure_bucket(link, "b", "x")
            assert await jetstream.kv_get(link, "b", "k") in (None, b"kept")
            await jetstream.kv_put(link, "b", "k", b"kept")
            await link.close()
            await running

    await bucket("k-the-first-one")
    with pytest.raises(BadKey, match=f"{tmp_path} was encrypted with another key than JS_KEY"):
        await EmbeddedServer(store=tmp_path, store_key="k-another-one").start()
    await bucket("k-the-first-one")
    assert not any(b"kept" in data for data in contents(tmp_path)), "no value is there in plain"


async def test_a_stream_whose_files_the_server_cannot_open_is_said_with_the_remedy(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "jetstream" / "$G" / "streams" / "KV_b"
    folder.mkdir(parents=True)
    (folder / "msgs").write_text("a file in the place of a folder")
    async with EmbeddedServer(store=tmp_path) as server:
        link = Link(LinkOptions(servers=(server.url,)))
        running = asyncio.create_task(link.run())
        await link.ready(30.0)
        with pytest.raises(Unavailable, match="start it with the key of before"):
            await jetstream.ensure_bucket(link, "b", "x")
        await link.close()
        await running
