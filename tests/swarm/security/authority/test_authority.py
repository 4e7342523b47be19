"""An authority's folder, and what a running server makes of it."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest
from real_server import Links
from support.waiting import eventually

from nodes.announce import announce, reload_servers
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument, NotAdmitted, NotFound
from swarm.link import LinkOptions
from swarm.security.authority.authority import Authority
from swarm.security.authority.claims import credentials_text, encode
from swarm.security.authority.keys import AuthorityKey
from swarm.security.authority.server_conf import BASE, operator_conf, plain_conf
from swarm.security.nkey import ACCOUNT, OPERATOR, USER, decode_seed


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "auth", "default")
    made.add("cam-1", "edge", ["digits"])
    made.add("cam-2", "edge", ["digits"])
    return made


@pytest.fixture
async def server(authority: Authority, tmp_path: Path, links: Links) -> EmbeddedServer:
    return await links.server(operator_conf(authority, str(tmp_path / "jwt")))


def creds(authority: Authority, name: str) -> str:
    return str(authority.credentials(name))


# --- the folder -----------------------------------------------------------------------------


def test_keys_and_credentials_are_their_owners_alone(authority: Authority) -> None:
    for path in authority.directory.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700


def test_an_authority_is_not_made_twice(authority: Authority) -> None:
    with pytest.raises(InvalidArgument, match="holds an authority already"):
        Authority.create(authority.directory, "default")


def test_what_was_issued_is_there_when_the_folder_is_opened_again(authority: Authority) -> None:
    again = Authority(authority.directory)
    assert [(u.name, u.role, u.models) for u in again.users] == [
        ("cam-1", "edge", ["digits"]),
        ("cam-2", "edge", ["digits"]),
    ]
    assert again.key("operator").public == authority.key("operator").public


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("authority.json", "{", "damaged"),
        ("authority.json", '{"mesh": "m"}', "damaged"),
        ("keys/operator.seed", "SAAAA", "no seed"),
    ],
)
def test_a_damaged_file_is_named(authority: Authority, path: str, text: str, words: str) -> None:
    (authority.directory / path).write_text(text)
    with pytest.raises(InvalidArgument, match=words) as failure:
        Authority(authority.directory).accounts()
    assert path in str(failure.value)


def test_a_file_that_others_may_read_is_refused_with_the_remedy(authority: Authority) -> None:
    path = authority.directory / "keys" / "operator.seed"
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match=f"chmod 600 {path}"):
        authority.key("operator")


def test_keys_that_are_older_than_a_role_serve_on_and_a_rotation_makes_its_key(
    authority: Authority,
) -> None:
    (authority.directory / "keys" / "standby.1.seed").unlink()
    older = Authority(authority.directory)
    assert older.accounts()
    with pytest.raises(InvalidArgument, match="swarm auth rotate"):
        older.add("spare", "standby", ["digits"])
    assert "spare" not in [user.name for user in older.users]
    older.rotate()
    assert older.add("spare", "standby", ["digits"]).role == "standby"


def test_a_name_has_one_valid_user(authority: Authority) -> None:
    with pytest.raises(InvalidArgument, match="swarm auth revoke cam-1"):
        authority.add("cam-1", "edge", ["digits"])
    before = authority.users[0].public
    authority.revoke("cam-1")
    assert not authority.credentials("cam-1").exists()
    assert authority.add("cam-1", "edge", ["digits"]).public != before
    with pytest.raises(NotFound, match="swarm auth list"):
        authority.revoke("nobody")


def test_a_user_that_cannot_be_leaves_the_folder_as_it_was(authority: Authority) -> None:
    before = sorted(authority.directory.rglob("*"))
    for name, role, models in (("a.b", "edge", ["m"]), ("a", "king", ["m"]), ("a", "edge", [])):
        with pytest.raises(InvalidArgument):
            authority.add(name, role, models)
    assert sorted(authority.directory.rglob("*")) == before


@pytest.mark.parametrize("kind", [USER, ACCOUNT, OPERATOR])
def test_a_key_of_another_kind_is_told_apart(kind: str) -> None:
    key = AuthorityKey.new(kind)
    assert key.public[0] == kind
    assert AuthorityKey(kind, decode_seed(key.seed, kind)).public == key.public
    for other in {USER, ACCOUNT, OPERATOR} - {kind}:
        with pytest.raises(InvalidArgument, match="this is the key of"):
            decode_seed(key.seed, other)


# --- a running server -------------------------------------------------------------------------


@pytest.mark.integration
async def test_who_is_revoked_is_cut_off_at_once_and_the_others_stay(
    authority: Authority, server: EmbeddedServer, links: Links
) -> None:
    gone = await links.connect(server.url, credentials=creds(authority, "cam-1"))
    stays = await links.connect(server.url, credentials=creds(authority, "cam-2"))
    kept = authority.directory / "copy.creds"
    kept.write_text(authority.credentials("cam-1").read_text())
    kept.chmod(0o600)
    authority.revoke("cam-1")
    await announce(authority, LinkOptions(servers=(server.url,)))
    await eventually(lambda: gone.refusal is not None or not gone.connected)
    link = links.start(server.url, credentials=str(kept))
    with pytest.raises(NotAdmitted, match="they are revoked") as refused:
        await link.ready(5.0)
    assert str(kept) in str(refused.value)
    await stays.flush()
    assert stays.reconnects == 0


@pytest.mark.integration
async def test_who_is_revoked_by_a_clock_that_was_set_back_is_cut_off_all_the_same(
    authority: Authority, server: EmbeddedServer, links: Links
) -> None:
    copies = []
    for hours in (0, 1):  # one file as it was issued, and one of a rotation behind a step
        slow = Authority(authority.directory, clock=lambda h=hours: time.time() - 3600 * h)
        if hours:
            slow.rotate()
        kept = authority.directory / f"copy-{hours}.creds"
        kept.write_text(authority.credentials("cam-1").read_text())
        kept.chmod(0o600)
        copies.append(kept)
    slow.revoke("cam-1")
    await announce(slow, LinkOptions(servers=(server.url,)))
    for kept in copies:
        link = links.start(server.url, credentials=str(kept))
        with pytest.raises(NotAdmitted, match="they are revoked"):
            await link.ready(5.0)


@pytest.mark.integration
async def test_credentials_end_when_they_expire_and_the_refusal_says_when(
    authority: Authority, server: EmbeddedServer, links: Links
) -> None:
    authority.add("short", "edge", ["digits"], valid=2.0)
    link = await links.connect(server.url, credentials=creds(authority, "short"))
    await eventually(lambda: link.refusal is not None)
    assert "they expired on" in str(link.refusal)
    assert "swarm auth add" in str(link.refusal)
    assert authority.users[-1].state(time.time()) == "expired"


@pytest.mark.integration
async def test_a_rotation_admits_old_and_new_files_until_it_is_finished(
    authority: Authority, server: EmbeddedServer, links: Links
) -> None:
    old = authority.directory / "old.creds"
    old.write_text(authority.credentials("cam-1").read_text())
    old.chmod(0o600)
    options = LinkOptions(servers=(server.url,))
    assert [user.name for user in authority.rotate()] == ["cam-1", "cam-2"]
    with pytest.raises(InvalidArgument, match="under way"):
        authority.rotate()
    await announce(authority, options)
    await links.connect(server.url, credentials=str(old))
    await links.connect(server.url, credentials=creds(authority, "cam-1"))
    authority.finish_rotation()
    await announce(authority, options)
    with pytest.raises(NotAdmitted):
        await links.start(server.url, credentials=str(old)).ready(5.0)
    await links.connect(server.url, credentials=creds(authority, "cam-1"))


@pytest.mark.integration
async def test_the_signing_key_of_a_role_cannot_issue_other_rights(
    authority: Authority, server: EmbeddedServer, links: Links, tmp_path: Path
) -> None:
    """As a thief of the edges' signing key would."""
    issuer = AuthorityKey.read(authority.directory / "keys" / "edge.1.seed", ACCOUNT)
    user = AuthorityKey.new(USER)
    body = {
        "type": "user",
        "issuer_account": authority.key("mesh").public,
        "pub": {"allow": [">"]},
        "sub": {"allow": [">"]},
        "subs": -1,
        "data": -1,
        "payload": -1,
    }
    forged = tmp_path / "forged.creds"
    forged.write_text(
        credentials_text(encode(issuer, user.public, "thief", body, int(time.time())), user.seed)
    )
    forged.chmod(0o600)
    with pytest.raises(NotAdmitted):
        await links.start(server.url, credentials=str(forged)).ready(5.0)


@pytest.mark.integration
async def test_a_plain_server_hears_of_a_revocation_by_a_signal(
    authority: Authority, links: Links, tmp_path: Path
) -> None:
    users = tmp_path / "users.conf"
    users.write_text(plain_conf(authority, time.time()))
    # A file is included by its path from the configuration's own folder.
    more = f'include "{"../" * 20}{str(users)[1:]}"\n'
    kept = tmp_path / "kept.nk"
    kept.write_text(authority.seed("cam-1").read_text())
    kept.chmod(0o600)
    seeds = {name: str(authority.seed(name)) for name in ("cam-1", "cam-2")}
    server = await links.server(more)
    gone = await links.connect(server.url, nkey=seeds["cam-1"])
    stays = await links.connect(server.url, nkey=seeds["cam-2"])
    assert gone.options.inbox.startswith(f"_INBOX.{authority.users[0].public}.")
    authority.revoke("cam-1")
    users.write_text(plain_conf(authority, time.time()))
    reload_servers(str(server.pid_file))
    await eventually(lambda: not gone.connected)
    with pytest.raises(NotAdmitted, match=str(kept)):
        await links.start(server.url, nkey=str(kept)).ready(5.0)
    await stays.flush()
    assert stays.reconnects == 0


def test_the_shipped_configuration_has_the_settings_that_auth_server_writes() -> None:
    shipped = Path(__file__).parents[4] / "deploy" / "nats-server.conf"
    assert shipped.read_text().endswith(BASE)


def test_no_seed_is_in_what_a_server_gets(authority: Authority, tmp_path: Path) -> None:
    text = operator_conf(authority, str(tmp_path)) + plain_conf(authority, 0.0)
    seeds = [path.read_text().strip() for path in (authority.directory / "keys").iterdir()]
    assert len(seeds) > 10  # one a key of the mesh: an empty folder would prove nothing
    assert not any(seed in text for seed in seeds)
    assert json.loads((authority.directory / "authority.json").read_text())["mesh"] == "default"
