"""Releases in the store of a mesh: never changed, signed by pushing the same again."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from nodes.upgrade.release import Release, ReleaseFile
from nodes.upgrade.releases import Releases
from swarm.errors import InvalidArgument, Untrusted
from swarm.link import Link, jetstream
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys, trust
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("test")
FILES = {"swarm_mesh-1.1-py3-none-any.whl": ReleaseFile(sha256(b"wheel").hexdigest(), 5)}
RELEASE, OTHER = Release("1.1", FILES), Release("1.1", FILES, "node,gateway")


async def test_a_release_that_nobody_signed_is_signed_by_pushing_the_same_again(
    link: Link, tmp_path: Path
) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"wheel")
    identity = Identity.make()
    trust(identity.public, "operator", tmp_path / "trusted")
    verifier = Verifier(TrustedKeys([tmp_path / "trusted"]))
    await Releases(link, SUBJECTS).push(tmp_path, RELEASE)
    operator = Releases(link, SUBJECTS, identity, verifier)
    with pytest.raises(Untrusted, match="unsigned"):
        await operator.release("1.1")
    with pytest.raises(InvalidArgument, match="never changes"):
        await operator.push(tmp_path, OTHER)
    await operator.push(tmp_path, RELEASE)
    assert await operator.release("1.1") == RELEASE
    await jetstream.kv_put(link, SUBJECTS.bucket("upgrades"), "release.1_1", OTHER.to_json())
    assert await operator.release("1.1") == RELEASE, "what is spoilt gives way to the one before"
    await operator.push(tmp_path, RELEASE)
    assert await operator.release("1.1") == RELEASE
