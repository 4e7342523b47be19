"""The value of `--source`, taken apart: which cameras there are, and of which kind. Pure, except
that a text without a scheme is looked for on the disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from swarm.errors import InvalidArgument
from swarm.subjects import token

MOST_SOURCES = 64  # of one edge
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)
FILMS = (".gif",)  # of pictures that may be many, and are played as a video where they are alone


class SourceKind(StrEnum):
    """How a source is read."""

    FILE = "file"
    PICTURES = "pictures"  # of a folder, or one
    RTSP = "rtsp"
    HTTP = "http"
    UDP = "udp"
    V4L2 = "v4l2"
    PICAMERA = "picamera2"


LIVE = (
    SourceKind.RTSP,
    SourceKind.UDP,
    SourceKind.V4L2,
    SourceKind.PICAMERA,
)  # of HTTP the answer tells
_SCHEMES = {
    "rtsp": SourceKind.RTSP,
    "rtsps": SourceKind.RTSP,
    "http": SourceKind.HTTP,
    "https": SourceKind.HTTP,
    "udp": SourceKind.UDP,
    "v4l2": SourceKind.V4L2,
    "picamera2": SourceKind.PICAMERA,
}


@dataclass(frozen=True, slots=True)
class Address:
    """One source. name: unique on the edge, a token of subjects. where: a URL or a path."""

    name: str
    kind: SourceKind
    where: str

    @property
    def is_live(self) -> bool:
        """Whether its frames surely come at their own moment, and none can wait."""
        return self.kind in LIVE

    @property
    def shown(self) -> str:
        """Where it is, for logs and status: without the password."""
        if self.kind not in (SourceKind.RTSP, SourceKind.HTTP):
            return self.where
        parts = urlsplit(self.where)
        place = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, place, parts.path, "", ""))


def is_camera(text: str) -> bool:
    """Whether `--source` names cameras, and not the captures of `nodes.edge.edge.open_source`."""
    return text != "digits" and not text.endswith(".npz")


def addresses(text: str) -> list[Address]:
    """The sources that `--source` names, separated by commas: `rtsp://a`, `gate=rtsp://b`. Without
    a name they are `cam-1`, `cam-2` … Behind a URL, what begins no source of its own belongs to it.
    Raises `InvalidArgument`."""
    parts = [text] if text and _exists(text) else _parts(text)
    if not parts:
        raise InvalidArgument("--source is empty: give a URL, a device, a file or a folder")
    if len(parts) > MOST_SOURCES:
        raise InvalidArgument(f"--source names {len(parts)} sources, of {MOST_SOURCES} at most")
    found = []
    for number, part in enumerate(parts, 1):
        named = None if _exists(part) else _NAMED.fullmatch(part)
        name, where = (named[1], named[2]) if named else (f"cam-{number}", part)
        found.append(Address(token(name, "a source's name"), _kind(where), where))
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidArgument(f"--source: two sources are called {', '.join(sorted(twice))}")
    return found


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    for piece in text.split(","):
        if parts and "://" in parts[-1] and not _begins(piece):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return [part for part in (each.rstrip(",") for each in parts) if part]


def _begins(piece: str) -> bool:
    """Whether a source begins here, and no more of a URL with commas in it."""
    named = _NAMED.fullmatch(piece)
    for where in (piece, named[2]) if named else (piece,):
        scheme, separator, _ = where.partition("://")
        if (separator and _SCHEME.fullmatch(scheme)) or where == "picamera2":
            return True
        if where.startswith("/dev/") or (where and _exists(where)):
            return True
    return False


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long a name, or one with a zero
        return False


def _kind(where: str) -> SourceKind:
    scheme, separator, _ = where.partition("://")
    if separator:
        kind = _SCHEMES.get(scheme.lower())
        if kind is None:
            known = ", ".join(_SCHEMES)
            raise InvalidArgument(f"--source {scheme}://…: the schemes are {known}")
        return kind
    if where == "picamera2":
        return SourceKind.PICAMERA
    if where.startswith("/dev/"):
        return SourceKind.V4L2
    from shards.cameras.picture import SUFFIXES  # most nodes take no pictures

    path = Path(where)
    if path.is_dir():
        return SourceKind.PICTURES
    if not path.is_file():
        raise InvalidArgument(
            f"--source {where!r}: it is digits, an .npz file, a video, a folder of pictures, a "
            "device as /dev/video0, or a URL of rtsp, http, udp; nothing of that is there"
        )
    suffix = path.suffix.lower()
    return SourceKind.PICTURES if suffix in SUFFIXES and suffix not in FILMS else SourceKind.FILE
