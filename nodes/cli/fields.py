"""Fields of documents from the network, read as if each were of any type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_PRINTABLE = "?"


def part(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object in a document; an empty one where the field is not an object."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def one_line(line: str) -> str:
    """A text without characters that steer a terminal, a line or the direction of writing."""
    return "".join(c if c.isprintable() else NOT_PRINTABLE for c in line)
