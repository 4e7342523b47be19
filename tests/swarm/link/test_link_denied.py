"""What a user may not do is told at once, to whoever waits, and once in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from real_server import Inbox, Links
from shared_server import SharedServer
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import NotConnected, PermissionDenied, Status, SwarmError
from swarm.link import jetstream
from swarm.subjects import FROM_SERVER, Subjects
from swarm.transport.lane import Publisher

pytestmark = pytest.mark.integration

SUBJECTS = Subjects("default")
USERS = """
authorization { users: [
  { user: all, password: x }
  { user: shard-2, password: x, permissions: {
      publish: { allow: ["$SYS.REQ.USER.INFO", "echo", "_INBOX.*.*.*"] }
      subscribe: { allow: ["_INBOX.shard-2.>"] } } }
  { user: silent, password: x, permissions: {
      publish: { allow: ["echo"] }, subscribe: { allow: ["_INBOX.silent.>"] } } }
  { user: deaf, password: x, permissions: {
      publish: { allow: [">"] }, subscribe: { allow: ["_INBOX.somebody.>"] } } }
] }
"""


@pytest.fixture(scope="module")
def with_users() -> Iterator[SharedServer]:
    made = SharedServer(USERS)
    made.start_now()
    yield made
    made.stop_now()


@pytest.fixture
def server(with_users: SharedServer, used: list[SharedServer]) -> SharedServer:
    used.append(with_users)
    return with_users


async def test_a_denied_request_fails_at_once_with_the_subject_and_the_role_that_may(
    server: SharedServer, links: Links
) -> None:
    link = await links.connect(server.url, user="shard-2", password="x")
    with pytest.raises(PermissionDenied) as denied:
        await link.request("swarm.default.infer.digits", b"", GENEROUS)
    assert denied.value.status is Status.PERMISSION_DENIED
    assert "swarm.default.infer.digits" in str(denied.value)
    assert "client, requester may" in str(denied.value)
    assert link.open_replies == 0


async def test_a_denied_call_of_jetstream_fails_at_once(server: SharedServer, links: Links) -> None:
    link = await links.connect(server.url, user="shard-2", password="x")
    with pytest.raises(PermissionDenied, match="the role operator may"):
        await jetstream.ensure_stream(link, {"name": "s", "subjects": ["s"]})
    with pytest.raises(PermissionDenied, match="KV_swarm-default-config"):
        await jetstream.kv_get(link, SUBJECTS.config_bucket, "serve.digits")


async def test_a_denied_publish_into_a_lane_is_told_to_its_sender_at_once(
    server: SharedServer, links: Links
) -> None:
    link = await links.connect(server.url, user="shard-2", password="x")
    publisher = Publisher(link)
    told: list[SwarmError | None] = []
    lane = SUBJECTS.features("digits", "1", 1)
    publisher.publish(lane, [b"x"], "id", lambda error, sequence: told.append(error))
    await eventually(lambda: told != [])
    assert isinstance(told[0], PermissionDenied)
    assert lane in str(told[0])
    publisher.close()


async def test_each_denied_subject_is_logged_once(
    server: SharedServer, links: Links, caplog: pytest.LogCaptureFixture
) -> None:
    link = await links.connect(server.url, user="shard-2", password="x")
    with caplog.at_level(logging.WARNING, "swarm.link"):
        for _ in range(3):
            link.publish("a", b"")
            link.publish("b", b"")
        link.subscribe("c", Inbox())
        await link.flush()
    assert [r.getMessage() for r in caplog.records] == [
        "this user may not publish to a: no role may",
        "this user may not publish to b: no role may",
        "this user may not subscribe to c: no role may",
    ]
    assert link.connected


async def test_a_link_knows_its_rights_where_the_server_tells_them(
    server: SharedServer, links: Links
) -> None:
    knows = await links.connect(server.url, user="shard-2", password="x")
    assert knows.grants.may_publish("echo")
    assert not knows.grants.may_publish("swarm.default.infer.digits")
    assert knows.grants.may_subscribe(f"{knows.options.inbox}.*")
    assert not knows.grants.may_subscribe("swarm.default.config.>")
    everything = await links.connect(server.url, user="all", password="x")
    assert everything.grants.may_publish("swarm.default.infer.digits")
    not_told = await links.connect(server.url, user="silent", password="x")
    assert not_told.grants.may_publish("swarm.default.infer.digits"), "it is tried then"


async def test_a_user_that_may_not_hear_its_answers_is_told_so_instead_of_waiting(
    server: SharedServer, links: Links
) -> None:
    link = links.start(server.url, user="deaf", password="x")
    with pytest.raises(NotConnected, match=r"may not subscribe to _INBOX\.deaf\.") as failure:
        await link.ready(GENEROUS, rounds=1)
    assert "the roles client, requester" in str(failure.value)


async def test_the_inbox_names_the_user_so_that_rights_can(
    server: SharedServer, links: Links
) -> None:
    by_option = await links.connect(server.url, user="shard-2", password="x")
    by_url = await links.connect(f"nats://shard-2:x@127.0.0.1:{server.port}")
    other = await links.connect(server.url, user="all", password="x")
    for link in (by_option, by_url):
        assert link.options.inbox.startswith("_INBOX.shard-2.")
    assert by_option.options.inbox != by_url.options.inbox
    other.subscribe("echo", lambda m: other.publish(m.reply, b"back"))
    await other.flush()
    assert bytes((await by_url.request("echo")).data) == b"back"


async def test_who_may_answer_processes_cannot_forge_an_answer_of_the_server(
    server: SharedServer, links: Links
) -> None:
    victim = await links.connect(server.url, user="all", password="x")
    forger = await links.connect(server.url, user="shard-2", password="x")
    heard = Inbox()
    of_process, of_server = victim.expect(heard), victim.expect_from_server(heard)
    assert of_server.startswith(f"{victim.server_inbox}.")
    assert victim.server_inbox.endswith(f".{FROM_SERVER}")
    assert victim.options.inbox not in of_server, "which everybody knows"
    denied: list[str] = []
    forger.on_denied.append(lambda subject, error: denied.append(subject))
    forger.publish(of_process, b"an answer")
    forger.publish(of_server, b'{"stream":"S", "seq":1}')
    await forger.flush()
    await victim.flush()
    assert heard.bodies == [b"an answer"]
    assert denied == [of_server]


async def test_an_open_server_is_asked_for_no_rights(links: Links) -> None:
    async with EmbeddedServer() as open_server:
        link = await links.connect(open_server.url)
        assert link.grants.may_publish("anything")
        assert link.open_replies == 0
