"""Who pushes a version: a claim stands in the place of its manifest until that is stored.

For readers a claim is a key without a value. It names the version's content. A push with other
content claims anew, so that the earlier one sees by the key's revision that it must not go on. So a
push that broke off does not block a later one.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from swarm.errors import Unavailable
from swarm.link import Link, jetstream

# Whether two manifests tell of the same version: of equal files that are used alike.
#
# A manifest also says when it was made, how long its stages took, and how exact they were found.
# Who splits a file a second time measures something else, and has the same version.


MEASURED = ("created",)  # fields of the manifest that differ with each time that it is made
ALLOWED = ("codecs", "result_codecs")  # names with measured errors: the names count


def same_version(one: bytes, other: bytes) -> bool:
    """Whether two manifests, JSON, describe equal contents under one name and version."""
    return one == other or _content(one) == _content(other)


def same_content(one: bytes, other: bytes) -> bool:
    """As `same_version`, of manifests that may have different versions."""
    return _content(one, version=False) == _content(other, version=False)


def content_digest(manifest: bytes) -> str:
    """SHA-256, in hexadecimal, that is equal for manifests of the same version."""
    return sha256(_content(manifest)).hexdigest()


def _content(manifest: bytes, *, version: bool = True) -> bytes:
    """What is not measured, as JSON with sorted keys; other bytes as they are."""
    try:
        doc = json.loads(manifest)
        return json.dumps(_lasting(doc, version), sort_keys=True).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return manifest


def _lasting(doc: dict[str, Any], version: bool) -> dict[str, Any]:
    out = {key: value for key, value in doc.items() if key not in MEASURED}
    if not version:
        del out["version"]
    out["shards"] = [_without(shard, "compute_ms") for shard in doc["shards"]]
    if "extra" in doc:
        out["extra"] = _without(doc["extra"], "notes")
    if "batching" in doc:
        out["batching"] = _without(doc["batching"], "why")
    if doc.get("decoder") is not None:
        out["decoder"] = _without(doc["decoder"], "proof")
    for name in ALLOWED:
        if name in doc:
            out[name] = sorted(doc[name])
    return out


def _without(doc: dict[str, Any], measured: str) -> dict[str, Any]:
    return {key: value for key, value in doc.items() if key != measured}


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
