"""`swarm keys new|show|trust|rotate`: the key that signs models, and the keys that nodes trust."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nodes.cli.command import argument, option
from nodes.cli.options import Json
from nodes.console import conclude, err, out, print_json
from swarm.errors import BadKey, InvalidArgument
from swarm.security import trusted_keys
from swarm.security.identity import Identity
from swarm.security.mesh_keys import (
    MeshKeys,
    key_id,
    make_mesh_key,
    read_mesh_keys,
    rotate_mesh_key,
)
from swarm.security.nkey import decode_public
from swarm.security.trusted_keys import (
    TrustedKeys,
    distrust,
    own_key,
    own_key_file,
    own_trust_file,
)

Key = Annotated[
    str, typer.Option("--key", hidden=True, help="File of the key pair; the user's own when empty.")
]
TrustFile = Annotated[
    str,
    typer.Option("--file", hidden=True, help="List of trusted keys; the user's own when empty."),
]
MeshKeyFile = Annotated[
    str,
    typer.Option(
        "--mesh-key", help="This file with the key of gossip, in place of a key that signs models."
    ),
]


async def new(
    file: str = argument("", "A new file; the user's own key when empty."),
    mesh_key: MeshKeyFile = "",
    json: Json = False,
) -> None:
    """Make a key pair that signs models. The user's own is trusted by the user's nodes at once."""
    if mesh_key:
        following = "give it to each member: swarm-node --mesh-key FILE"
        _show(mesh_key, make_mesh_key(Path(mesh_key)), following, json)
        return
    path = Path(file) if file else own_key_file()
    if path.exists():
        raise BadKey(
            f"{path} exists, and a key is not overwritten: `swarm keys rotate` makes a new one"
        )
    public = (Identity.load_or_make(path) if file else own_key()).public
    doc = {"public": public, "key": str(path), "trusted": not file}
    conclude(
        json,
        doc,
        public,
        f"its secret half is in {path}",
        f"next, on each device: swarm keys trust {public}",
    )


async def show(
    key: Key = "", file: TrustFile = "", mesh_key: MeshKeyFile = "", json: Json = False
) -> None:
    """Show the public key that signs, and the keys that are trusted."""
    if mesh_key:
        keys = read_mesh_keys(mesh_key)
        _show(mesh_key, keys, f"{NEXT_STEP[keys.step]} {mesh_key}" if keys.step else "", json)
        return
    path = Path(key) if key else own_key_file()
    public = Identity.load(path).public if key or path.exists() else ""
    trusted = TrustedKeys([Path(file) if file else own_trust_file()]).listed()
    if json:
        print_json({"public": public, "key": str(path), "trusted": trusted})
        return
    if public:
        out.print(public, soft_wrap=True)
    elif not trusted:
        raise BadKey(f"no key yet: `swarm keys new` makes {path}")
    else:
        err.print(f"no key yet: swarm keys new ({path})", soft_wrap=True)
    for one, name in trusted.items():
        err.print(f"trusted  {one}  {name}", soft_wrap=True, highlight=False, markup=False)


async def trust(
    public: Annotated[str, typer.Argument(help="A public key, as `swarm keys show` prints it.")],
    name: str = argument("", "Whose it is, for people."),
    remove: bool = option(False, "Trust it no more."),
    file: TrustFile = "",
    json: Json = False,
) -> None:
    """Take models that this key has signed. Nodes that run read the list again by themselves."""
    try:
        decode_public(public)
    except InvalidArgument as error:
        raise BadKey(f"{error}; `swarm keys show` prints one") from None
    path = Path(file) if file else own_trust_file()
    known = path.exists() and public in TrustedKeys([path]).listed()
    if remove and not (known and distrust(public, path)):
        raise BadKey(f"{path} does not list {public}")
    if not remove and not known:
        trusted_keys.trust(public, name, path)
    doc = {"public": public, "trusted": not remove, "file": str(path)}
    word = "is trusted no more" if remove else "is trusted"
    conclude(json, doc, f"{public} {word}: {path}")


async def rotate(
    key: Key = "", file: TrustFile = "", mesh_key: MeshKeyFile = "", json: Json = False
) -> None:
    """Sign with a new key from now on. The old one stays trusted until it is removed.

    With --mesh-key: take the next one of the three steps that change the key of gossip.
    """
    if mesh_key:
        keys = rotate_mesh_key(Path(mesh_key))
        following = f"{NEXT_STEP[keys.step]} {mesh_key}" if keys.step else NEXT_STEP[0]
        _show(mesh_key, keys, following, json)
        return
    path = Path(key) if key else own_key_file()
    old = Identity.load(path)
    kept = path.with_name(f"{path.name}.{time.strftime('%Y%m%dT%H%M%S')}")
    trusted = Path(file) if file else own_trust_file()
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        new = Identity.load_or_make(fresh)
        # Trusted before it signs: there is no moment in which the user's own nodes refuse it.
        trusted_keys.trust(new.public, "own key", trusted)
        os.link(path, kept)
        os.replace(fresh, path)
    except OSError as error:
        raise BadKey(f"the key {path} was not rotated: {error}") from None
    doc = {"public": new.public, "old": old.public, "key": str(path), "old_key": str(kept)}
    conclude(
        json,
        doc,
        new.public,
        f"1. on each device: swarm keys trust {new.public}",
        "2. here, for each model: swarm model push DIR, then swarm model promote NAME@VERSION",
        f"3. on each device: swarm keys trust --remove {old.public}",
        f"the old key is kept in {kept}: delete it after step 2",
    )


NEXT_STEP = {
    0: "all members mark and take the new key alone, once each has this file",
    1: "give this file to each member; when all have it: swarm keys rotate --mesh-key",
    2: "the new key marks from now on: give this file to each member; then once more: swarm keys "
    "rotate --mesh-key",
}


def _show(file: str, keys: MeshKeys, following: str, as_json: bool) -> None:
    doc: dict[str, Any] = {
        "file": str(Path(file)),
        "marks": key_id(keys.marks),
        "takes": [key_id(key) for key in keys.accepted],
        "step": keys.step,
    }
    if as_json:
        print_json(doc)
        return
    out.print(f"marks  {doc['marks']}", highlight=False)
    for taken in doc["takes"][1:]:
        out.print(f"takes  {taken}  {keys.phase}", highlight=False)
    if following:
        err.print(f"next: {following}", soft_wrap=True, highlight=False, markup=False)
