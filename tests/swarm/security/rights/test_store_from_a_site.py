"""A process at a site uses the hub's store by the link of the servers, as one at the hub does."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from real_server import Inbox, Links
from rights_users import files, issued
from support.waiting import eventually

from nodes.up.embedded_cluster import free_ports
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import SwarmError
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.security.authority.server_conf import plain_conf
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration

CONFIG = "swarm-default-config"
KEY = f"$KV.{CONFIG}.serve.digits"
INFO = f"$JS.hub.API.STREAM.INFO.KV_{CONFIG}"


async def is_linked(link: Link) -> bool:
    """The leaf connects by itself."""
    with contextlib.suppress(SwarmError):
        return await jetstream.stream_exists(link, f"KV_{CONFIG}")
    return False


async def test_it_reads_writes_and_hears_of_changes_and_aims_no_answer_at_a_key(
    tmp_path: Path, links: Links
) -> None:
    authority = issued(tmp_path / "auth")
    authority.name_domain("hub")
    (port,) = free_ports(1)
    leaves = (
        f"leafnodes {{\n host: 127.0.0.1\n port: {port}\n no_advertise: true\n"
        " authorization { user: site, password: site, account: MESH }\n}\n"
    )
    remote = f'{{ url: "nats-leaf://site:site@127.0.0.1:{port}" }}'
    leaf = f'leafnodes {{ reconnect: "250ms", remotes: [ {remote} ] }}\n'
    async with (
        EmbeddedServer(more=plain_conf(authority, 0.0) + leaves, domain="hub") as hub,
        EmbeddedServer(more=leaf, domain="edge1") as site,
    ):
        operator = await links.connect(hub.url, **files(authority, "operator", True))
        await Registry(operator, Subjects("default")).prepare()
        await jetstream.kv_put(operator, CONFIG, "serve.digits", b"believed")
        member = await links.connect(site.url, domain="hub")
        await eventually(lambda: is_linked(member))
        heard = Inbox()
        member.subscribe("swarm.default.config.>", heard)
        assert await jetstream.kv_get(member, CONFIG, "serve.digits") == b"believed"
        before = await jetstream.kv_entry(operator, CONFIG, "serve.digits")
        for aim in (KEY, f"$JS.hub.API.{KEY}"):
            member.publish(INFO, b"", aim)
        # An honest write goes the same way behind them, and is heard of.
        await jetstream.kv_put(member, CONFIG, "abort.digits.plan", b"broken")
        await eventually(lambda: b"broken" in heard.bodies)
        assert await jetstream.kv_entry(operator, CONFIG, "serve.digits") == before
        await links.close()
