"""Commands and nodes with credentials that do not do: one line, and exit code 2."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.commands import Commands
from support.meshes import READY
from support.waiting import eventually, eventually_now

from nodes.announce import announce
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, local_mesh
from nodes.up.rights import LocalRights
from swarm.link import LinkOptions

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest.fixture
async def secured() -> AsyncIterator[LocalMesh]:
    async with local_mesh(secure=True) as local:
        yield local


def line_of(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_a_command_with_the_wrong_files_says_so_in_one_line_and_exits_with_2(
    secured: LocalMesh, run: Commands
) -> None:
    assert secured.rights is not None
    given = secured.rights.issue("dashboard").arguments()
    credentials, authority = given[1], given[3]
    where = ("status", "--nats", secured.url)
    good = run.swarm(*where, *given)
    assert (good.process.returncode, "no node speaks" in good.stdout) == (1, True)
    for arguments, words in (
        (("--tls-ca", authority), "give --credentials FILE"),
        (("--credentials", credentials), "give the authority that issued it with --tls-ca FILE"),
        (("--credentials", "/nowhere.creds"), "--credentials /nowhere.creds: No such file"),
    ):
        command = run.swarm(*where, *arguments)
        assert command.process.returncode == 2, command.stderr
        assert words in line_of(command.stderr)
    told = run.swarm(*where, "--tls-ca", authority, "--json")
    assert json.loads(told.stdout)["status"] == "UNAUTHENTICATED"


async def test_a_node_that_is_revoked_while_it_runs_ends_with_one_line_and_exit_code_2(
    tmp_path: Path, run: Commands
) -> None:
    rights = LocalRights(tmp_path / "rights", "default")
    async with EmbeddedServer(more=rights.configuration()) as server:
        access = rights.access("cam-1", "edge", "digits")
        kept = tmp_path / "cam-1.creds"
        kept.write_text(rights.authority.credentials("cam-1").read_text())
        kept.chmod(0o600)
        node = run.start(
            "nodes.cli.node",
            *("--role", "edge", "--model", "digits", "--nats", server.url),
            *("--credentials", str(kept), "--tls-ca", access.tls_ca),
        )
        eventually_now(lambda: "waiting: " in node.stderr, "the node is connected and waits", READY)
        rights.authority.revoke("cam-1")
        options = LinkOptions(servers=(server.url,), tls_ca=access.tls_ca)
        await announce(rights.authority, options)
        await eventually(lambda: node.process.poll() is not None, "the revoked node ends")
        assert node.process.returncode == 2, node.stderr
        last = node.stderr.splitlines()[-1]
        assert last.startswith("swarm-node: "), node.stderr
        assert str(kept) in last
        assert "revoked" in last
