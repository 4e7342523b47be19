"""`swarm release push|sign|verify`."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.acts import on_record
from nodes.cli.command import seldom
from nodes.cli.options import Json, SignedTarget
from nodes.cli.with_mesh import client_of, operator
from nodes.console import conclude
from nodes.progress import progress
from nodes.upgrade.release import (
    DOCUMENT,
    SIGNATURE,
    Release,
    is_part,
    is_whole,
    release_of,
)
from nodes.upgrade.releases import Releases
from swarm.errors import BadSignature, InvalidArgument, NotFound, Untrusted
from swarm.security import signing
from swarm.security.files import replace
from swarm.security.trusted_keys import TrustedKeys, own_key

CONTEXT = "swarm release 1"
LARGEST = 1 << 20  # bytes of a document
Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="It holds the files of a release.")]
Version = Annotated[
    str, typer.Option(hidden=True, help="Of the release; that of the folder's swarm_mesh-*.whl.")
]
Extras = Annotated[str, typer.Option(hidden=True, help="Of the package, that devices need.")]


async def push(
    folder: Folder, target: SignedTarget, version: Version = "", extras: Extras = "node"
) -> None:
    """Sign the wheels in a folder as one release, and store them in the mesh."""
    async with client_of(target) as client:
        release = release_of(Path(folder), version, extras)
        releases = Releases(client.link, client.subjects, **operator(target))
        named = release.version
        with progress(f"release {named}", total=release.size, silent=target.json) as sent:
            stored = await releases.push(Path(folder), release, sent)
        await on_record(client, "release", release=named.replace(".", "_"))
        doc = {"version": named, "files": len(release.files), "bytes": release.size}
        conclude(
            target.json,
            doc | {"stored_bytes": stored},
            f"release {named}: {len(release.files)} files, {release.size / 1e6:.1f} MB",
            f"next: swarm fleet upgrade --to {named}",
        )


async def sign(
    folder: Folder,
    version: Version = "",
    key: str = seldom("", "File of the key pair; the user's own by default."),
    json: Json = False,
) -> None:
    """Write the hashes of a folder's files to release.json, and its signature to release.sig."""
    path, identity = Path(folder), own_key(key)
    release = release_of(path, version)
    document = release.to_json()
    signature = base64.b64encode(signing.sign(identity, CONTEXT, document)).decode()
    replace(path / DOCUMENT, document, 0o644)
    replace(path / SIGNATURE, f"{identity.public} {signature}\n".encode(), 0o644)
    doc = {"version": release.version, "signed_by": identity.public}
    conclude(json, doc, f"{path / DOCUMENT} is signed by {identity.public}")


async def verify(
    folder: Folder,
    trust: str = seldom("", "File with trusted keys; else yours are."),
    json: Json = False,
) -> None:
    """Check a folder's files against release.json and its signature."""
    release, public = verified(Path(folder), TrustedKeys.of(trust))
    doc = {"version": release.version, "signed_by": public, "files": sorted(release.files)}
    said = f"release {release.version}: {len(release.files)} files, as {public} signed them"
    conclude(json, doc, said)


def verified(folder: Path, trusted: TrustedKeys) -> tuple[Release, str]:
    """The release in a folder, and who signed it. Raises `Untrusted`, `NotFound`,
    `InvalidArgument`."""
    try:
        document = (folder / DOCUMENT).read_bytes()[:LARGEST]
        public, _, text = (folder / SIGNATURE).read_text("ascii").strip().partition(" ")
        signature = base64.b64decode(text, validate=True)
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename} is missing: `swarm release sign` writes it") from None
    except (UnicodeDecodeError, binascii.Error) as error:
        raise Untrusted(f"{folder / SIGNATURE} is no signature: {error}") from None
    if not trusted.allows(public):
        raise Untrusted(
            f"{folder} is signed by {public:.80}, which is not in {trusted}: if that key is to be "
            f"believed, `swarm keys trust {public:.80}`"
        )
    try:
        signing.verify(public, CONTEXT, document, signature)
    except BadSignature as error:
        raise Untrusted(f"{folder / DOCUMENT} was altered after it was signed: {error}") from None
    release = Release.from_json(document)
    for name, wanted in release.files.items():
        if not is_whole(folder, name, wanted):
            raise InvalidArgument(f"{folder / name} is missing, or is not what was signed")
    for path in sorted(folder.iterdir()):
        if path.is_file() and is_part(path.name) and path.name not in release.files:
            raise InvalidArgument(f"{path} is in the folder, and nobody signed it")
    return release, public
