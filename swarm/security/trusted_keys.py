"""Public keys whose signatures a node takes, and the user's own key.

A list of keys is a file, read by people and by nodes: one key a line, a name behind it.

    # the cameras of hall 3
    UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4  camera-1

The user's own files are in a folder of settings:

    FOLDER/swarm/key        the seed of the user's own key pair, mode 0600
    FOLDER/swarm/trusted    a list of keys

FOLDER is `$XDG_CONFIG_HOME`, or `~/.config` (XDG Base Directory Specification).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from swarm.errors import BadKey, InvalidArgument
from swarm.security.files import alone, replace
from swarm.security.identity import Identity
from swarm.security.nkey import decode_public

LARGEST_FILE = 4 << 20  # bytes
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_Stamp = tuple[int, int, int]


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


NOBODY = AllowList({})


def settings_folder() -> Path:
    """Where the user's keys are. Raises `BadKey` for a user without a home."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        return (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "swarm"
    except RuntimeError:
        raise BadKey("this user has no home folder: set XDG_CONFIG_HOME") from None


def own_key_file() -> Path:
    """The user's own key."""
    return settings_folder() / "key"


def own_trust_file() -> Path:
    """The keys that the nodes of this user trust, where no other file is named."""
    return settings_folder() / "trusted"


class TrustedKeys:
    """The public keys in some files. A file that changes is read again when it is asked for.

    files: each has to be there when this is made, but the user's own, which nobody may have made
    yet. Raises `BadKey` for a file that cannot be read, that others may write to, or that lists
    anything but keys.
    """

    def __init__(self, files: Sequence[str | Path]) -> None:
        self.files = tuple(Path(file) for file in files)
        self._read: dict[Path, tuple[_Stamp, AllowList]] = {}
        own = own_trust_file()
        for file in self.files:
            if file != own and not file.exists():
                raise BadKey(
                    f"{file} does not exist: it lists public keys, one a line, as `swarm keys "
                    "show` prints them"
                )
            self._list(file)

    @classmethod
    def of(cls, text: str) -> TrustedKeys:
        """Of file names, separated by commas; the user's own file for ''. Raises as the class."""
        return cls([name for name in text.split(",") if name] or [own_trust_file()])

    def allows(self, public: str) -> bool:
        """Whether one of the files lists this key now. Raises `BadKey`."""
        return any(self._list(file).allows(public) for file in self.files)

    def listed(self) -> dict[str, str]:
        """All keys, and their names. Raises `BadKey`."""
        found: dict[str, str] = {}
        for file in self.files:
            found |= self._list(file).keys or {}
        return found

    def __str__(self) -> str:
        return ", ".join(map(str, self.files))

    def _list(self, file: Path) -> AllowList:
        try:
            state = file.stat()
        except FileNotFoundError:
            return NOBODY
        except OSError as error:
            raise BadKey(f"the trusted keys: {error}") from None
        if state.st_mode & OTHERS_WRITE:
            raise BadKey(f"others may write to {file}: `chmod go-w {file}`, and look what is in it")
        stamp = state.st_mtime_ns, state.st_size, state.st_ino
        known = self._read.get(file)
        if known is None or known[0] != stamp:
            try:
                known = self._read[file] = stamp, AllowList.read(file)
            except InvalidArgument as error:
                raise BadKey(f"the trusted keys: {error}") from None
        return known[1]


def own_key(path: str | Path = "") -> Identity:
    """The key pair in a file; '' is the user's own, made with its entry in the user's list of
    trusted keys when it is missing. Raises `BadKey`."""
    if path:
        return Identity.load(path)
    identity = Identity.load_or_make(own_key_file())
    file = own_trust_file()
    if identity.public not in TrustedKeys([file]).listed():
        trust(identity.public, "own key", file)
    return identity


def trust(public: str, name: str, file: Path) -> None:
    """Add a line to a list of trusted keys, which is made when missing. Raises `BadKey`."""
    line = f"{public}  {' '.join(name.split())}".rstrip() + "\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(file):
            before = file.read_text(encoding="utf-8") if file.exists() else ""
            between = "" if before.endswith("\n") or not before else "\n"
            replace(file, (before + between + line).encode(), 0o644)
    except (OSError, UnicodeError) as error:
        raise BadKey(f"the trusted keys: {error}") from None


def distrust(public: str, file: Path) -> bool:
    """Remove a key's lines from a list; False where it had none. Raises `BadKey`."""
    try:
        with alone(file):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.partition("#")[0].split()[:1] != [public]]
            if kept != lines:
                replace(file, "".join(kept).encode(), 0o644)
    except (OSError, UnicodeError) as error:
        raise BadKey(f"the trusted keys: {error}") from None
    return kept != lines
