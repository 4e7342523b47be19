"""Who pushes a version: a claim stands in the place of its manifest until that is stored.

For readers a claim is a key without a value. It names the version's content. A push with other
content claims anew, so that the earlier one sees by the key's revision that it must not go on. So a
push that broke off stands in nobody's way.
"""

from __future__ import annotations

from swarm.errors import Unavailable
from swarm.link import Link, jetstream
from swarm.models.same_version import content_digest, same_version

CLAIM = "Swarm-Pushes"  # header: the digest of the version that is being pushed
ATTEMPTS = 8  # at a claim that others make at the same time


class PushClaim:
    """The claim of one push on the key of its manifest. revision: of the key; the claim's own, once
    it is made."""

    def __init__(self, link: Link, bucket: str, key: str, manifest: bytes, revision: int) -> None:
        self.revision = revision
        self._link = link
        self._bucket = bucket
        self._key = key
        self._manifest = manifest

    async def make(self, headers: bytes) -> None:
        """Claim the key. headers: of the key now. Raises `Unavailable` where others have stored
        their manifest."""
        digest = content_digest(self._manifest)
        more = {"KV-Operation": "DEL", CLAIM: digest}
        for _ in range(ATTEMPTS):
            if f"{CLAIM}: {digest}".encode() in headers.split(b"\r\n"):
                return  # the same content: pushed by others too, or in an earlier attempt
            claimed = await jetstream.kv_replace(
                self._link, self._bucket, self._key, b"", after=self.revision, more=more
            )
            if claimed is not None:
                self.revision = claimed
                return
            found, self.revision, headers = await self._present()
            if self._is_ours(found):
                return
            if found is not None:
                break
        raise self.lost()

    async def check(self) -> None:
        """Raises `Unavailable` where others have claimed the key, or stored another manifest there,
        since this claim."""
        found, revision, _ = await self._present()
        if revision != self.revision and not self._is_ours(found):
            raise self.lost()

    def _is_ours(self, found: bytes | None) -> bool:
        """Whether a stored manifest is of the version that is being pushed."""
        return found is not None and same_version(found, self._manifest)

    async def _present(self) -> tuple[bytes | None, int, bytes]:
        return await jetstream.kv_message(self._link, self._bucket, self._key)

    def lost(self) -> Unavailable:
        """The error of the push that lost."""
        version = "@".join(self._key.split(".")[1:])
        return Unavailable(
            f"others push {version} at the same time, with other content: look at `swarm model "
            "list`, and split again with another --version"
        )
