"""The file of the mesh's key: gossip goes on with what it holds, also after it was changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from swarm.errors import BadKey
from swarm.gossip.wire import MeshKey
from swarm.periodic import beat
from swarm.security.mesh_keys import MeshKeys, key_id, read_mesh_keys

log = logging.getLogger("swarm.node")

LOOK_EVERY = 1.0  # seconds


class MeshKeyFile:
    """The keys in the file `path`, "" for no key. Raises `BadKey`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._keys = read_mesh_keys(path) if path else None
        self._faulty = False

    @property
    def accepted(self) -> MeshKey:
        """The present keys, the one that marks first; None without a file."""
        return None if self._keys is None else self._keys.accepted

    async def follow(self, use: Callable[[MeshKey], None]) -> None:
        """Call `use` with the keys of a file that has changed, until cancelled. A file that cannot
        be used changes nothing, and is named once."""
        while self._path:
            await beat(LOOK_EVERY)
            if (stamp := _stamp(self._path)) == self._stamp:
                continue
            try:
                keys = read_mesh_keys(self._path)
            except BadKey as error:
                if not self._faulty:
                    self._faulty = True
                    log.warning("gossip goes on with the key of before: %s", error)
                continue
            self._stamp, self._faulty = stamp, False
            if keys != self._keys:
                self._keys = keys
                use(keys.accepted)
                log.info("%s", described(keys))


def described(keys: MeshKeys) -> str:
    """For people; no key is in it."""
    also = f", and takes {key_id(keys.also)} too" if keys.also else ""
    return f"gossip marks with the mesh key {key_id(keys.marks)}{also}"


def _stamp(path: str) -> tuple[int, int, int, int]:
    """Changes with the file, and with the right to read it."""
    try:
        state = Path(path).stat()
    except OSError:
        return 0, 0, 0, 0
    return state.st_mtime_ns, state.st_size, state.st_ino, state.st_mode
