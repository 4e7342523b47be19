"""Certificates of an authority: who trusts which, before, during and after a change of it."""

from __future__ import annotations

import re
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from swarm.errors import InvalidArgument
from swarm.security.authority.certificates import CertificateAuthority, read_certificate

HOSTS = ("127.0.0.1", "nats.example.org")


def authority_in(folder: Path) -> CertificateAuthority:
    made = CertificateAuthority(folder)
    made.make()
    return made


def trusts(ca: Path, cert: Path, key: Path, name: str = HOSTS[1]) -> bool:
    """Whether a client with this list of authorities takes a server with this certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = ssl.create_default_context(cafile=ca)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server, server_hostname=name)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (asks, answers):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_during_a_change_of_the_authority_certificates_of_both_are_trusted(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "tls")
    first, old, old_key = authority.issue_server(tmp_path / "old", HOSTS)
    authority.make()
    both, new, new_key = authority.issue_server(tmp_path / "new", HOSTS)
    assert authority.is_changing
    assert [trusts(first, old, old_key), trusts(first, new, new_key)] == [True, False]
    assert [trusts(both, old, old_key), trusts(both, new, new_key)] == [True, True]
    authority.finish()
    assert not authority.is_changing
    only = authority.trusted
    assert [trusts(only, old, old_key), trusts(only, new, new_key)] == [False, True]


def test_a_certificate_says_for_whom_it_is_and_until_when(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "tls")
    _, server, _ = authority.issue_server(tmp_path / "server", HOSTS)
    _, client, key = authority.issue_client(tmp_path / "users", "cam-1", timedelta(days=90))
    assert read_certificate(server).hosts == HOSTS
    state = read_certificate(client)
    assert (state.name, state.hosts, state.issuer) == ("cam-1", (), authority.issuer)
    assert (state.until - read_certificate(server).until).days == 90 - 825
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_damaged_authority_is_named(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "tls")
    (tmp_path / "tls" / "ca.key").write_text("noise")
    with pytest.raises(InvalidArgument, match=r"ca\.key holds no key"):
        authority.issue_client(tmp_path, "cam-1")
    authority.trusted.write_text("noise")
    with pytest.raises(InvalidArgument, match=r"ca\.pem holds no certificate"):
        authority.finish()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("*.nats.example", "nats-1.nats.example"),
        ("*.x-nats.plant.svc", "x-nats-0.x-nats.plant.svc"),
    ],
)
def test_a_star_in_front_of_two_names_stands_for_one(tmp_path: Path, host: str, name: str) -> None:
    authority = authority_in(tmp_path / "tls")
    assert trusts(*authority.issue_server(tmp_path / "server", [host]), name)


@pytest.mark.parametrize(
    "host",
    ["*.x-nats", "*", "nats-*.x-nats", "nats-*.plant.example", "x.*.example", "*.*.example"],
)
def test_a_name_with_a_star_that_no_client_takes_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(host)):
        authority_in(tmp_path / "tls").issue_server(tmp_path / "server", [host])
