"""An updater's record on the disk: replaced as a whole, and on the disk before anything follows."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from nodes.upgrade.device import Record
from swarm.errors import InvalidArgument
from swarm.security.files import replace

log = logging.getLogger("swarm.upgrade")

LARGEST = 64 << 10  # bytes


class RecordFile:
    """The record in one file. Methods raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Record | None:
        """None where there is none, or none that can be read: then `current` says what is good."""
        try:
            with self._path.open("rb") as file:
                return Record.of(json.loads(file.read(LARGEST)))
        except FileNotFoundError:
            return None
        except (ValueError, InvalidArgument) as error:
            log.warning("%s is left aside: %s", self._path, error)
            return None

    def write(self, record: Record) -> None:
        """Returns when it is on the disk, with its name."""
        replace(self._path, json.dumps(record.document()).encode() + b"\n", 0o644)
        sync_folder(self._path.parent)


def sync_folder(folder: Path) -> None:
    """Returns when the names in a folder are on the disk. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
