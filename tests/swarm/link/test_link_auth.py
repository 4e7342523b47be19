"""Who may connect: user and password, token, TLS."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from real_server import Inbox, Links
from support.waiting import GENEROUS, eventually

from swarm.errors import NotAdmitted, NotConnected

pytestmark = pytest.mark.integration

USERS = 'authorization { users: [ { user: "edge", password: "p@ss word" } ] }\n'
TOKEN = 'authorization { token: "s3cr3t-token" }\n'


async def test_the_right_user_and_password_open_a_session(links: Links) -> None:
    server = await links.server(USERS)
    by_options = await links.connect(server.url, user="edge", password="p@ss word")
    by_url = await links.connect(f"nats://edge:p%40ss%20word@127.0.0.1:{server.port}")
    inbox = Inbox()
    by_options.subscribe("a", inbox)
    await by_options.flush()
    by_url.publish("a", b"x")
    await eventually(lambda: inbox.bodies == [b"x"])


async def test_the_right_token_opens_a_session(links: Links) -> None:
    server = await links.server(TOKEN)
    for link in (
        await links.connect(server.url, token="s3cr3t-token"),
        await links.connect(f"nats://s3cr3t-token@127.0.0.1:{server.port}"),
    ):
        await link.flush()
        assert link.connected


@pytest.mark.parametrize("extra", [USERS, TOKEN], ids=["user", "token"])
@pytest.mark.parametrize(
    "options", [{}, {"user": "edge", "password": "wrong"}, {"token": "wrong"}], ids=str
)
async def test_a_wrong_credential_is_refused_in_the_servers_words_and_not_leaked(
    links: Links, extra: str, options: dict[str, str]
) -> None:
    server = await links.server(extra)
    link = links.start(server.url, **options)
    with pytest.raises(NotAdmitted, match=r"(?i)authorization violation") as failure:
        await link.ready(GENEROUS)  # at once: to wait would not help
    assert "wrong" not in str(failure.value)
    assert not link.connected
    assert links.running(link)


async def test_a_refusal_is_told_where_the_last_server_of_the_list_is_away(links: Links) -> None:
    server = await links.server(USERS)
    link = links.start(server.url, "nats://127.0.0.1:1")
    with pytest.raises(NotAdmitted, match=r"(?i)authorization violation"):
        await link.ready(GENEROUS)


async def test_a_server_without_room_says_so_and_is_asked_again(links: Links) -> None:
    server = await links.server("max_connections: 1\n")
    first = await links.connect(server.url)
    second = links.start(server.url)
    with pytest.raises(NotConnected, match="maximum connections exceeded"):
        await second.ready(GENEROUS, rounds=2)
    await links.crash(first)
    await second.ready(GENEROUS)


async def test_a_refused_url_does_not_show_its_password(links: Links) -> None:
    server = await links.server(USERS)
    link = links.start(f"nats://edge:hunter2@127.0.0.1:{server.port}")
    with pytest.raises(NotConnected) as failure:
        await link.ready(GENEROUS, rounds=1)
    assert "hunter2" not in str(failure.value)
    assert "check the user, password or token" in str(failure.value)
    assert "hunter2" not in link.last_error


async def test_a_forbidden_subject_costs_the_message_and_not_the_connection(links: Links) -> None:
    extra = (
        'authorization { users: [ { user: "edge", password: "x", '
        'permissions: { publish: { deny: ["secret.>"] } } } ] }\n'
    )
    server = await links.server(extra)
    link = await links.connect(server.url, user="edge", password="x")
    inbox = Inbox()
    link.subscribe(">", inbox)
    link.publish("secret.a", b"1")
    link.publish("open.a", b"2")
    await link.flush()
    assert inbox.bodies == [b"2"]
    assert link.last_error == "this user may not publish to secret.a: no role may"
    assert link.reconnects == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.mark.parametrize("first", [False, True], ids=["info-first", "tls-first"])
async def test_tls_carries_large_messages_both_ways(
    links: Links, certificate: tuple[Path, Path], first: bool
) -> None:
    cert, key = certificate
    early = ", handshake_first: true" if first else ""
    extra = f'tls {{ cert_file: "{cert}", key_file: "{key}"{early} }}\n'
    context = ssl.create_default_context(cafile=str(cert))
    server = await links.server(extra)
    link = await links.connect(server.url, tls=context, tls_first=first)
    inbox = Inbox()
    link.subscribe("a", inbox)
    block = bytes(range(256)) * 8192
    link.publish("a", [block, block])
    link.publish("a", b"after")
    await eventually(lambda: len(inbox) == 2)
    assert inbox.bodies == [block * 2, b"after"]
    assert link.max_payload == server.max_payload
    await server.kill()
    await eventually(lambda: not link.connected)
    await server.start()
    await link.ready(GENEROUS)
    link.publish("a", b"again")
    await eventually(lambda: inbox.bodies[2:] == [b"again"])


async def test_a_certificate_of_nobody_we_trust_is_refused(
    links: Links, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    server = await links.server(f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n')
    link = links.start(server.url)
    with pytest.raises(NotConnected, match=r"(?i)certificate"):
        await link.ready(GENEROUS, rounds=1)


async def test_tls_that_was_asked_for_is_never_given_up(
    links: Links, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    plain = await links.server()
    link = links.start(plain.url, tls=context)
    with pytest.raises(NotConnected, match="offers no TLS"):
        await link.ready(GENEROUS, rounds=1)
    assert not link.connected
