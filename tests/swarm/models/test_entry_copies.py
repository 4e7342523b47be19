"""The registry of a process whose server is away: what was read last, checked as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifests import manifest
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.documents import Copies
from swarm.errors import Unavailable, Untrusted
from swarm.link import Link
from swarm.models.registry import Registry
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys, trust
from swarm.subjects import Subjects

SUBJECTS = Subjects("default")
MANIFEST = manifest("1")


def test_an_entry_is_what_was_saved_last(tmp_path: Path) -> None:
    kept = Copies(tmp_path / "new")
    assert kept.load("b", "k") is None
    for value, headers in ((b"one", b"NATS/1.0\r\n\r\n"), (b"", b""), (b"two", b"h")):
        kept.save("b", "k", value, headers)
        assert Copies(tmp_path / "new").load("b", "k") == (value, headers)
    assert kept.load("b", "other") is None
    assert len(list((tmp_path / "new").iterdir())) == 1, "nothing half written stays"


async def test_a_registry_that_is_away_is_read_from_disk_if_the_signature_is_good(
    own_server: EmbeddedServer, links: Links, tmp_path: Path
) -> None:
    identity = Identity.make()
    trust(identity.public, "me", tmp_path / "trusted")
    link = await links.connect(own_server.url)
    writer = Registry(link, SUBJECTS, identity)
    await writer.push(MANIFEST, {})

    def registry(link: Link, folder: str = "kept") -> Registry:
        verifier = Verifier(TrustedKeys.of(str(tmp_path / "trusted")))
        return Registry(link, SUBJECTS, None, verifier, Copies(tmp_path / folder))

    reader = registry(link)
    assert await reader.manifest("m", "1") == MANIFEST
    desired = await reader.desired("m")
    await own_server.kill()
    again = registry(link)
    assert await again.manifest("m", "1") == MANIFEST
    assert await again.desired("m") == desired
    present = await again.in_force("m")
    assert present is not None
    assert present.document == desired
    with pytest.raises(Unavailable):
        await again.manifest("m", "2")
    with pytest.raises(Unavailable):
        await registry(link, "empty").desired("m")
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes().replace(b'"m"', b'"n"').replace(b'"1"', b'"9"'))
    with pytest.raises(Untrusted):
        await registry(link).desired("m")
