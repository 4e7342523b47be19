"""`swarm keys new|show|rotate --mesh-key FILE`: the key that members mark their gossip with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nodes.console import err, out, print_json
from swarm.security.mesh_keys import (
    MeshKeys,
    key_id,
    make_mesh_key,
    read_mesh_keys,
    rotate_mesh_key,
)

NEXT_STEP = {
    0: "all members mark and take the new key alone, once each has this file",
    1: "give this file to each member; when all have it: swarm keys rotate --mesh-key",
    2: "the new key marks from now on: give this file to each member; then once more: swarm keys "
    "rotate --mesh-key",
}


async def run_new_mesh_key(file: str, as_json: bool) -> None:
    """`swarm keys new --mesh-key`."""
    path = Path(file)
    keys = make_mesh_key(path)
    _show(path, keys, "give it to each member: swarm-node --mesh-key FILE", as_json)


async def run_show_mesh_key(file: str, as_json: bool) -> None:
    """`swarm keys show --mesh-key`."""
    keys = read_mesh_keys(file)
    _show(Path(file), keys, "" if not keys.step else f"{NEXT_STEP[keys.step]} {file}", as_json)


async def run_rotate_mesh_key(file: str, as_json: bool) -> None:
    """`swarm keys rotate --mesh-key`: one step."""
    keys = rotate_mesh_key(Path(file))
    more = f" {file}" if keys.step else ""
    _show(Path(file), keys, f"{NEXT_STEP[keys.step]}{more}", as_json)


def _show(path: Path, keys: MeshKeys, following: str, as_json: bool) -> None:
    doc: dict[str, Any] = {
        "file": str(path),
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
