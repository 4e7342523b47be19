"""Fields of a JSON object, read with an error that names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shards.errors import ManifestError

FILE_NAME = "manifest.json"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
# Files lie beside the manifest. A name that leads out of the folder is an attack or a mistake.
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_token(title: str, value: object) -> str:
    """Return the value if it may be a token of a subject, or a folder's name.

    Raises ManifestError otherwise, which names the value by `title`.
    """
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ManifestError(f"{title} {value!r} must be made of letters, digits, '-' and '_'")
    return value


def objects(raw: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """A field that holds objects by name. Raises ManifestError."""
    items: dict[str, dict[str, Any]] = get(raw, key, dict)
    if not all(isinstance(item, dict) for item in items.values()):
        raise ManifestError(f"manifest field {key!r} must hold objects")
    return items


def digest_of(raw: Mapping[str, Any], key: str) -> str:
    """A field that holds a SHA-256. Raises ManifestError."""
    value = get(raw, key, str)
    if not _SHA256.fullmatch(value):
        raise ManifestError(f"manifest field {key!r} is not a SHA-256 in hexadecimal")
    return str(value)


def file_name(name: str) -> str:
    """The name, if it is a plain file name. Raises ManifestError."""
    if not _FILE.fullmatch(name) or name == FILE_NAME:
        raise ManifestError(f"{name!r} is not a plain file name")
    return name


def get(raw: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """A field of this type; a boolean is no number. Raises ManifestError."""
    value = raw.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = kind.__name__ if isinstance(kind, type) else "number"
        raise ManifestError(f"manifest field {key!r} must be of type {names}, is {value!r}")
    return value
