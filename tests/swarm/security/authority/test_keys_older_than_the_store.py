"""Keys that were made before models and desired state had an account of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_server import Links

from nodes.cli.auth import run_server
from nodes.cli.auth_options import ServerOptions
from nodes.up.embedded_server import EmbeddedServer
from swarm.link import jetstream
from swarm.models.registry import Registry
from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf, plain_conf
from swarm.subjects import Subjects

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
    await run_server(server, ServerOptions(plain=plain), auth, False)
    assert "--separate-store" in " ".join(_said(capsys).split())
    await run_server(server, ServerOptions(plain=plain, separate_store=True), auth, False)
    assert "--separate-store" not in _said(capsys)
    renewed = Authority(auth)
    assert renewed.has_store
    assert len(renewed.accounts()) == 4
    assert STORE in plain_conf(renewed, 0.0)


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
