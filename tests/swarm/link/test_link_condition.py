"""How a connection is, as the kernel tells; and when what admits a process ends."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from swarm.link import Link
from swarm.link.condition import Condition, expiries, read_tcp_info


@given(st.binary(max_size=139))
def test_a_kernel_that_says_too_little_tells_nothing(data: bytes) -> None:
    assert read_tcp_info(data) is None


def test_round_trip_and_loss_are_read_where_linux_has_them() -> None:
    data = bytearray(232)
    for at, value in ((68, 1500), (100, 7), (136, 400)):
        struct.pack_into("=I", data, at, value)
    assert read_tcp_info(bytes(data)) == Condition(0.0015, 400, 7)


def link_with(**options: Any) -> Link:
    """As far as its options and its transport are looked at."""
    peer = options.pop("peer", None)
    transport = SimpleNamespace(get_extra_info=lambda name: peer if name == "peercert" else None)
    given = {"credentials": None, "nkey": None, "tls_cert": ""} | options
    gather = SimpleNamespace(transport=transport)
    return cast(Link, SimpleNamespace(options=SimpleNamespace(**given), gather=gather))


def a_certificate(file: Path, ends: datetime) -> Path:
    key, name = (
        Ed25519PrivateKey.generate(),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c")]),
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(ends - timedelta(days=30))
        .not_valid_after(ends)
        .sign(key, None)
    )
    file.write_bytes(made.public_bytes(Encoding.PEM))
    return file


def test_the_ends_of_an_own_and_of_a_server_certificate_are_told(tmp_path: Path) -> None:
    ends = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    own = a_certificate(tmp_path / "own.pem", ends)
    link = link_with(tls_cert=str(own), peer={"notAfter": "Jan  2 03:04:06 2030 GMT"})
    assert expiries(link) == {"certificate": ends.timestamp(), "server": ends.timestamp() + 1}


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_that_cannot_be_read_just_now_is_left_out(tmp_path: Path, text: str) -> None:
    file = tmp_path / "own.pem"
    assert expiries(link_with(tls_cert=str(file))) == {}
    file.write_text(text)
    assert expiries(link_with(tls_cert=str(file), credentials=str(file))) == {}
