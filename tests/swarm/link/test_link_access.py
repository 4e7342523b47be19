"""Files of keys and certificates that do not do: a sentence each, with the file and the remedy."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from real_server import Links
from support.waiting import GENEROUS, eventually

from swarm.errors import NotAdmitted, NotConnected, Unauthenticated
from swarm.link import LinkOptions
from swarm.security.authority.authority import Authority
from swarm.security.authority.certificates import CertificateAuthority
from swarm.security.authority.server_conf import operator_conf, plain_conf, tls_conf

HOSTS = ("127.0.0.1", "localhost")


def write_certificates(folder: Path, hosts: tuple[str, ...]) -> tuple[Path, Path, Path]:
    """Paths of a new authority's certificate, of a server's for `hosts`, and of its key."""
    authority = CertificateAuthority(folder)
    authority.make()
    return authority.issue_server(folder, hosts)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "auth", "default")
    made.add("cam-1", "edge", ["digits"])
    made.add("cam-2", "edge", ["digits"])
    return made


def missing(path: Path) -> None:
    path.unlink()


def readable_by_others(path: Path) -> None:
    path.chmod(0o644)


def emptied(path: Path) -> None:
    path.write_text("")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4)


@pytest.mark.parametrize("flag", ["credentials", "nkey"])
@pytest.mark.parametrize("fault", [missing, readable_by_others, emptied, a_folder, noise])
def test_a_file_that_cannot_be_used_is_named_before_anything_is_sent(
    authority: Authority, flag: str, fault: Callable[[Path], None]
) -> None:
    path = authority.credentials("cam-1") if flag == "credentials" else authority.seed("cam-1")
    fault(path)
    with pytest.raises(NotAdmitted, match=re.escape(f"--{flag} {path}: ")) as refused:
        LinkOptions(**{flag: str(path)})  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    if fault is readable_by_others:
        assert f"chmod 600 {path}" in str(refused.value)


def test_a_seed_is_not_taken_for_credentials_nor_the_other_way_round(authority: Authority) -> None:
    with pytest.raises(NotAdmitted, match="a bare seed is for --nkey"):
        LinkOptions(credentials=str(authority.seed("cam-1")))
    with pytest.raises(NotAdmitted, match="no seed of an identity"):
        LinkOptions(nkey=str(authority.credentials("cam-1")))


def test_the_key_of_an_account_is_not_a_users(authority: Authority) -> None:
    with pytest.raises(NotAdmitted, match="the key of an account, and an identity's is needed"):
        LinkOptions(nkey=str(authority.directory / "keys" / "mesh.seed"))


def test_a_seed_of_somebody_else_is_found_out(authority: Authority) -> None:
    mine, other = authority.credentials("cam-1"), authority.seed("cam-2").read_text().strip()
    mine.write_text(mine.read_text().replace(authority.seed("cam-1").read_text().strip(), other))
    with pytest.raises(NotAdmitted, match="its seed is not the key of its JWT"):
        LinkOptions(credentials=str(mine))


def test_files_for_tls_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    ca, cert, key = write_certificates(tmp_path, HOSTS)
    other = tmp_path / "other"
    _, _, foreign_key = write_certificates(other, HOSTS)
    nothing = str(tmp_path / "nothing.pem")
    with pytest.raises(NotAdmitted, match=f"--tls-ca {nothing}: No such file"):
        LinkOptions(tls_ca=nothing)
    with pytest.raises(NotAdmitted, match=f"--tls-ca {key}: no usable PEM file"):
        LinkOptions(tls_ca=str(key))
    with pytest.raises(NotAdmitted, match="--tls-cert and --tls-key go together"):
        LinkOptions(tls_cert=str(cert))
    with pytest.raises(NotAdmitted, match=f"--tls-key {foreign_key}: no usable PEM file"):
        LinkOptions(tls_cert=str(cert), tls_key=str(foreign_key))
    key.chmod(0o644)
    with pytest.raises(NotAdmitted, match=f"chmod 600 {key}"):
        LinkOptions(tls_ca=str(ca), tls_cert=str(cert), tls_key=str(key))


# --- servers ------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_credentials_and_a_bare_key_open_a_session(
    authority: Authority, links: Links, tmp_path: Path
) -> None:
    server = await links.server(operator_conf(authority, str(tmp_path / "jwt")))
    link = await links.connect(server.url, credentials=str(authority.credentials("cam-1")))
    assert link.grants.user == "cam-1"
    assert link.options.inbox.startswith("_INBOX.cam-1.")
    plain = await links.server(plain_conf(authority, 0.0))
    link = await links.connect(plain.url, nkey=str(authority.seed("cam-1")))
    assert link.grants.may_publish("swarm.default.features.digits.1.1.any")


@pytest.mark.integration
async def test_credentials_of_another_operator_are_refused_at_once(
    authority: Authority, links: Links, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", "default")
    other.add("cam-1", "edge", ["digits"])
    path = str(other.credentials("cam-1"))
    server = await links.server(operator_conf(authority, str(tmp_path / "jwt")))
    with pytest.raises(Unauthenticated, match="of another operator") as refused:
        await links.start(server.url, credentials=path).ready(GENEROUS)
    assert path in str(refused.value)
    with pytest.raises(NotAdmitted, match="give --credentials FILE"):
        await links.start(server.url).ready(GENEROUS)


@pytest.mark.integration
async def test_credentials_do_no_harm_at_a_server_that_asks_for_none(
    authority: Authority, links: Links
) -> None:
    server = await links.server()
    link = await links.connect(server.url, credentials=str(authority.credentials("cam-1")))
    await link.flush()
    assert link.connected


@pytest.mark.integration
async def test_a_server_without_tls_is_refused_where_tls_was_asked_for(
    links: Links, tmp_path: Path
) -> None:
    ca, _, _ = write_certificates(tmp_path, HOSTS)
    server = await links.server()
    with pytest.raises(NotAdmitted, match=r"offers no TLS.*leave out --tls-ca"):
        await links.start(server.url, tls_ca=str(ca)).ready(GENEROUS)
    with pytest.raises(NotAdmitted, match="offers no TLS"):
        await links.start(server.url.replace("nats:", "tls:")).ready(GENEROUS)


@pytest.mark.integration
async def test_a_server_of_another_authority_is_refused_and_the_file_is_named(
    links: Links, tmp_path: Path
) -> None:
    _, cert, key = write_certificates(tmp_path / "a", HOSTS)
    other, _, _ = write_certificates(tmp_path / "b", HOSTS)
    server = await links.server(tls_conf(cert, key, None, mutual=False))
    with pytest.raises(NotAdmitted, match=f"not trusted by --tls-ca {other}"):
        await links.start(server.url, tls_ca=str(other)).ready(GENEROUS)
    with pytest.raises(NotAdmitted, match="with --tls-ca FILE"):
        await links.start(server.url).ready(GENEROUS)


@pytest.mark.integration
@pytest.mark.parametrize("hosts", [("nats-1",), ("192.0.2.1", "localhost.example")])
async def test_a_certificate_without_the_servers_name_is_told_from_one_of_another_authority(
    links: Links, tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    ca, cert, key = write_certificates(tmp_path, hosts)
    server = await links.server(tls_conf(cert, key, None, mutual=False))
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        with pytest.raises(NotAdmitted, match=r"another server's .*mismatch.*--tls NAME"):
            await links.start(url, tls_ca=str(ca)).ready(GENEROUS)


@pytest.mark.integration
async def test_a_server_that_asks_for_a_certificate_gets_one_or_a_clear_refusal(
    links: Links, tmp_path: Path
) -> None:
    ca, cert, key = write_certificates(tmp_path / "a", HOSTS)
    _, other, other_key = write_certificates(tmp_path / "b", HOSTS)
    server = await links.server(tls_conf(cert, key, ca, mutual=True))
    link = await links.connect(server.url, tls_ca=str(ca), tls_cert=str(cert), tls_key=str(key))
    assert link.gather.transport is not None
    assert link.gather.transport.get_extra_info("cipher")[1] == "TLSv1.3"
    with pytest.raises(NotConnected, match="--tls-cert FILE --tls-key FILE"):
        await links.start(server.url, tls_ca=str(ca)).ready(GENEROUS)
    with pytest.raises(NotConnected, match="--tls-cert FILE --tls-key FILE"):
        await links.start(
            server.url, tls_ca=str(ca), tls_cert=str(other), tls_key=str(other_key)
        ).ready(GENEROUS)


@pytest.mark.integration
async def test_a_rotated_certificate_is_taken_at_the_next_connection(
    links: Links, tmp_path: Path
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    ca, cert, key = write_certificates(first, HOSTS)
    new_ca, new_cert, new_key = write_certificates(second, HOSTS)
    server = await links.server(tls_conf(cert, key, ca, mutual=True))
    link = await links.connect(server.url, tls_ca=str(ca), tls_cert=str(cert), tls_key=str(key))
    for new, old in ((new_ca, ca), (new_cert, cert), (new_key, key)):
        shutil.copy(new, old)
    await server.kill()
    await eventually(lambda: not link.connected)
    await server.start()
    await link.ready(GENEROUS)
    await link.flush()
    assert link.reconnects == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_of_somebody_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.creds"
    path.write_text("")
    path.chmod(0)
    with pytest.raises(NotAdmitted, match="Permission denied"):
        LinkOptions(credentials=str(path))
