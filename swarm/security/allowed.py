"""Who may: a file of public keys, one a line, read by people and by nodes.

# the cameras of hall 3
UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4  camera-1
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from swarm.errors import InvalidArgument
from swarm.security.nkey import decode_public

LARGEST_FILE = 4 << 20  # bytes


class AllowList:
    """Public keys that may do something, each with the name that the file gives it.

    keys: None lets everybody; an empty map lets nobody.
    """

    def __init__(self, keys: Mapping[str, str] | None = None) -> None:
        self.keys = None if keys is None else MappingProxyType(dict(keys))

    @classmethod
    def read(cls, path: str | Path) -> AllowList:
        """The list in a file; with "" everybody is allowed.

        Raises `InvalidArgument`, with the line, for a file that cannot be read or holds anything
        but keys, names behind them, and comments from `#` on.
        """
        if not path:
            return cls()
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                # Not the limit: so many bytes would be set aside at once.
                data = file.read(min(size, LARGEST_FILE))
        except OSError as error:
            raise InvalidArgument(f"the list of allowed keys: {error}") from None
        if size > LARGEST_FILE:
            raise InvalidArgument(f"the list {path} has more than {LARGEST_FILE} bytes")
        keys: dict[str, str] = {}
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                decode_public(words[0])
            except InvalidArgument as error:
                raise InvalidArgument(f"{path}, line {number}: {error}") from None
            keys[words[0]] = " ".join(words[1:])
        return cls(keys)

    def allows(self, public: str) -> bool:
        """Whether the holder of this public key is allowed."""
        return self.keys is None or public in self.keys
