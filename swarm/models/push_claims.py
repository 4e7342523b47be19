"""Who pushes a version: a claim stands in the place of its manifest until that is stored.

For readers a claim is a key without a value. It names the manifest's content. A push with other
content claims anew, so that the earlier one sees by the key's revision that it must not go on. So a
push that broke off stands in nobody's way.
"""

from __future__ import annotations

from hashlib import sha256

from swarm.errors import ApiError, Unavailable
from swarm.link import Link, jetstream

CLAIM = "Swarm-Pushes"  # header: the SHA-256 of the manifest that is being pushed
ATTEMPTS = 8  # at a claim that others make at the same time


async def claim(
    link: Link, bucket: str, key: str, manifest: bytes, revision: int, headers: bytes
) -> int:
    """Claim a manifest's key; returns its revision, which it keeps until the push ends. revision,
    headers: of the key now. Raises `Unavailable` where others have stored their manifest."""
    digest = sha256(manifest).hexdigest()
    more = {"KV-Operation": "DEL", CLAIM: digest}
    for _ in range(ATTEMPTS):
        if f"{CLAIM}: {digest}".encode() in headers.split(b"\r\n"):
            return revision  # the same content: pushed by others too, or in an earlier attempt
        try:
            return await jetstream.kv_put(link, bucket, key, b"", after=revision, more=more)
        except ApiError as error:
            if error.err_code not in jetstream.WRONG_REVISIONS:
                raise
        found, revision, headers = await jetstream.kv_message(link, bucket, key)
        if found == manifest:
            return revision
        if found is not None:
            break
    raise pushed_by_others(key)


async def check(link: Link, bucket: str, key: str, manifest: bytes, revision: int) -> None:
    """Raises `Unavailable` where others have claimed the key, or stored another manifest there,
    since the claim of this revision."""
    found, now, _ = await jetstream.kv_message(link, bucket, key)
    if now != revision and found != manifest:
        raise pushed_by_others(key)


def pushed_by_others(key: str) -> Unavailable:
    """The error of the push that lost. key: `models.<model>.<version>`."""
    version = "@".join(key.split(".")[1:])
    return Unavailable(
        f"others push {version} at the same time, with other content: look at `swarm model list`, "
        "and split again with another --version"
    )
