"""A node's durable state: saved atomically, restored at its restart.

One MessagePack file with a CRC-32 in front. A torn or foreign file is ignored with
a warning, and the node starts afresh.
"""

from __future__ import annotations

import logging
import os
import zlib
from pathlib import Path
from typing import Any

from swarm.errors import DecodeError
from swarm.wire.maps import pack, unpack_map

log = logging.getLogger("swarm.checkpoint")

MAGIC = b"SWARMCP1"
MAX_BYTES = 16 << 20  # of one checkpoint


class Checkpoint:
    """The file of one role of one mesh in `directory`; with '' nothing is kept."""

    def __init__(self, directory: str, mesh: str, role: str) -> None:
        self.path = Path(directory) / f"{mesh}-{role}.checkpoint" if directory else None

    def save(self, state: dict[str, Any]) -> None:
        """Replace what was saved, or leave it as it was. Raises `OSError` (disk full …)."""
        if self.path is None:
            return
        body = pack(state)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(MAGIC + zlib.crc32(body).to_bytes(4, "big") + body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def load(self) -> dict[str, Any]:
        """The state that was saved last, or {}; never raises for a bad file."""
        if self.path is None or not self.path.exists():
            return {}
        try:
            data = self.path.read_bytes()
            head = len(MAGIC) + 4
            if data[: len(MAGIC)] != MAGIC or len(data) < head:
                raise DecodeError("the file does not begin as a checkpoint does")
            body = data[head:]
            if zlib.crc32(body).to_bytes(4, "big") != data[len(MAGIC) : head]:
                raise DecodeError("the checksum is wrong: the file was torn or changed")
            return unpack_map(body, MAX_BYTES)
        except (OSError, DecodeError) as error:
            log.warning("the checkpoint %s is ignored: %s", self.path, error)
            return {}
