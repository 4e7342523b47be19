"""What an authority's limits keep its users from, on a real server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_server import Links
from support.waiting import eventually

from nodes.announce import announce
from swarm.errors import ApiError, InvalidArgument, MessageTooLarge, NotConnected
from swarm.link import Link, LinkOptions, jetstream
from swarm.security.authority.authority import Authority
from swarm.security.authority.limits import UNLIMITED, AccountLimits
from swarm.security.authority.server_conf import operator_conf, plain_conf

SMALL = AccountLimits(3, 30, payload=4096, client_payload=1024, streams=2, consumers=2)
Open = Callable[[str], Any]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "auth", "default")
    for name, role in (("cam", "edge"), ("ops", "operator"), ("app", "client")):
        made.add(name, role, ["digits"])
    made.limit(SMALL)
    return made


@pytest.fixture(params=["by JWT", "plain"])
async def user(
    request: pytest.FixtureRequest, authority: Authority, links: Links, tmp_path: Path
) -> Open:
    """Opens a link of a user."""
    plain = request.param == "plain"
    jwts = str(tmp_path / "jwt")
    text = plain_conf(authority, time.time()) if plain else operator_conf(authority, jwts)
    server = await links.server(text)

    def start(name: str) -> Link:
        if plain:
            return links.start(server.url, nkey=str(authority.seed(name)))
        return links.start(server.url, credentials=str(authority.credentials(name)))

    return start


@pytest.mark.integration
async def test_one_connection_too_many_is_refused_and_the_others_stay(user: Open) -> None:
    first = [user("cam") for _ in range(SMALL.connections)]
    for link in first:
        await link.ready(5.0)
    with pytest.raises((NotConnected, TimeoutError)):
        await user("cam").ready(0.5)
    await user("app").ready(5.0)  # clients have an account of their own
    for link in first:
        await link.flush()


@pytest.mark.integration
async def test_one_subscription_too_many_is_refused_and_the_connection_stays(user: Open) -> None:
    link = user("cam")
    await link.ready(5.0)
    for number in range(2 * SMALL.subscriptions):
        link.subscribe(f"{link.options.inbox}.{number}", lambda message: None)
    await link.flush()
    await eventually(lambda: "subscriptions" in link.last_error.lower())
    assert link.connected


@pytest.mark.integration
async def test_a_client_s_message_that_is_too_large_ends_its_own_connection_alone(
    user: Open,
) -> None:
    member, client = user("cam"), user("app")
    await member.ready(5.0)
    await client.ready(5.0)
    large = b"x" * (SMALL.client_payload + 1)
    with pytest.raises(MessageTooLarge, match="max_payload is 1024"):
        client.publish("swarm.default.infer.digits", large)
    # One that does not keep to it:
    client.gather.write(b"PUB swarm.default.infer.digits %d\r\n%s\r\n" % (len(large), large))
    await eventually(lambda: client.reconnects > 0)
    member.publish("swarm.default.gossip.x", b"x" * (SMALL.client_payload + 1))
    await member.flush()
    assert member.reconnects == 0


@pytest.mark.integration
async def test_streams_are_counted(user: Open) -> None:
    operator = user("ops")
    await operator.ready(5.0)
    for number in range(SMALL.streams):
        config = {"name": f"S{number}", "subjects": [f"s.{number}"], "storage": "memory"}
        await jetstream.ensure_stream(operator, config)
    with pytest.raises(ApiError, match="streams"):
        await jetstream.ensure_stream(
            operator, {"name": "S", "subjects": ["s.s"], "storage": "memory"}
        )


@pytest.mark.integration
async def test_limits_that_change_hold_at_once(
    authority: Authority, links: Links, tmp_path: Path
) -> None:
    authority.limit(AccountLimits())
    server = await links.server(operator_conf(authority, str(tmp_path / "jwt")))
    credentials = str(authority.credentials("cam"))
    for _ in range(4):
        await links.connect(server.url, credentials=credentials)
    authority.limit(AccountLimits(connections=4))
    await announce(authority, LinkOptions(servers=(server.url,)))
    with pytest.raises((NotConnected, TimeoutError)):
        await links.start(server.url, credentials=credentials).ready(0.5)


def test_limits_are_kept_in_the_folder_and_a_folder_without_them_has_the_usual(
    authority: Authority,
) -> None:
    assert Authority(authority.directory).limits == SMALL
    path = authority.directory / "authority.json"
    path.write_text('{"mesh": "default", "users": []}')
    assert Authority(authority.directory).limits == AccountLimits()


@pytest.mark.parametrize("wrong", [0, -2, 1 << 62, 1.5, True, "9"])
def test_a_limit_that_is_none_is_refused(authority: Authority, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="connections is a number"):
        AccountLimits(connections=wrong)
    assert AccountLimits(connections=UNLIMITED).connections == UNLIMITED
