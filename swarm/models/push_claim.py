"""Who pushes a version: a claim stands in the place of its manifest until that is stored.

For readers a claim is a key without a value. It names the manifest's content. A push with other
content claims anew, so that the earlier one sees by the key's revision that it must not go on. So a
push that broke off stands in nobody's way.
"""

from __future__ import annotations

from hashlib import sha256

from swarm.errors import Unavailable
from swarm.link import Link, jetstream

CLAIM = "Swarm-Pushes"  # header: the SHA-256 of the manifest that is being pushed
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
        digest = sha256(self._manifest).hexdigest()
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
            if found == self._manifest:
                return
            if found is not None:
                break
        raise self.lost()

    async def check(self) -> None:
        """Raises `Unavailable` where others have claimed the key, or stored another manifest there,
        since this claim."""
        found, revision, _ = await self._present()
        if revision != self.revision and found != self._manifest:
            raise self.lost()

    async def _present(self) -> tuple[bytes | None, int, bytes]:
        return await jetstream.kv_message(self._link, self._bucket, self._key)

    def lost(self) -> Unavailable:
        """The error of the push that lost."""
        version = "@".join(self._key.split(".")[1:])
        return Unavailable(
            f"others push {version} at the same time, with other content: look at `swarm model "
            "list`, and split again with another --version"
        )
