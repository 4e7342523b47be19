"""Keys that were made before models and desired state had an account of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_server import Inbox, Links
from support.waiting import eventually

from nodes.cli.auth_server import ServerOptions
from nodes.cli.auth_server import server as write
from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf, plain_conf
from swarm.subjects import Subjects, api
from swarm.transport.lane import LaneOptions, make_lanes

STORE = "STORE {"


@pytest.fixture
def older(tmp_path: Path) -> Authority:
    authority = Authority.create(tmp_path / "auth", "default")
    authority.add("ops", "operator", ["digits"])
    path = authority.directory / "authority.json"
    doc = json.loads(path.read_text())
    del doc["store"]
    path.write_text(json.dumps(doc))
    return Authority(authority.directory)


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_they_serve_on_as_they_were(older: Authority) -> None:
    assert not older.has_store
    assert len(older.accounts()) == 3
    assert STORE not in plain_conf(older, 0.0)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_configuration_of_theirs_says_in_one_line_how_to_renew_them(
    older: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str], plain: bool
) -> None:
    server, auth = str(tmp_path / "server"), str(older.directory)
    await write(server, ServerOptions(plain=plain), auth, False)
    assert "--separate-store" in " ".join(_said(capsys).split())
    await write(server, ServerOptions(plain=plain, separate_store=True), auth, False)
    assert "--separate-store" not in _said(capsys)
    renewed = Authority(auth)
    assert renewed.has_store
    assert len(renewed.accounts()) == 4
    assert STORE in plain_conf(renewed, 0.0)


@pytest.mark.integration
@pytest.mark.parametrize("plain", [True, False])
async def test_a_server_that_kept_lanes_and_models_with_the_members_goes_over_by_a_restart(
    older: Authority, tmp_path: Path, links: Links, plain: bool
) -> None:
    for shard in ("shard-1", "shard-2"):
        older.add(shard, shard, ["digits"])
    subjects = Subjects("default")

    def files(user: str) -> dict[str, str]:
        if plain:
            return {"nkey": str(older.seed(user))}
        return {"credentials": str(older.credentials(user))}

    async def pushed(url: str) -> Link:
        operator = await links.connect(url, **files("ops"))
        await Registry(operator, subjects).prepare()
        await make_lanes(operator, subjects, "digits", "1", 3, LaneOptions(storage="file"))
        return operator

    async def served(url: str) -> bytes:
        shards = [await links.connect(url, **files(shard)) for shard in ("shard-1", "shard-2")]
        into = subjects.features("digits", "1", 2)
        await shards[0].request(into, b"work", from_server=True)
        work, inbox = Inbox(), f"{shards[1].server_inbox}.work"
        shards[1].subscribe(inbox, work)
        stream, name = subjects.stream("digits", "1", 2), subjects.consumer("digits", 2)
        body = b'{"batch": 1, "expires": 5000000000, "group": "g"}'
        shards[1].publish(api("CONSUMER.MSG.NEXT", stream, name), body, inbox)
        await eventually(lambda: len(work) > 0)
        shards[1].publish(work[0].reply, b"+ACK")
        await shards[1].flush()
        return bytes(work[0].data)

    def configuration() -> str:
        return plain_conf(older, 0.0) if plain else operator_conf(older, str(tmp_path / "jwt"))

    store = tmp_path / "store"
    async with EmbeddedServer(more=configuration(), store=store) as server:
        await pushed(server.url)
        assert await served(server.url) == b"work"
        await links.close()
    older.separate_store()
    async with EmbeddedServer(more=configuration(), store=store) as server:
        operator = await links.connect(server.url, **files("ops"))
        named = await jetstream.call(operator, api("STREAM.NAMES"))
        assert named["streams"] is None, "what lay with the members is out of reach"
        await pushed(server.url)
        assert await served(server.url) == b"work"
        await links.close()
    # It lies where it lay: the operator may remove the folder of that account.
    account = "MESH" if plain else older.key("mesh").public
    assert (store / "jetstream" / account / "streams").is_dir()


@pytest.mark.integration
async def test_renewed_their_users_need_no_new_files(
    older: Authority, tmp_path: Path, links: Links
) -> None:
    older.separate_store()
    async with EmbeddedServer(more=operator_conf(older, str(tmp_path / "jwt"))) as server:
        link = await links.connect(server.url, credentials=str(older.credentials("ops")))
        await Registry(link, Subjects("default")).prepare()
        await jetstream.kv_put(link, "swarm-default-config", "serve.digits", b"7")
        assert await jetstream.kv_get(link, "swarm-default-config", "serve.digits") == b"7"
