"""What exporters write into the metadata of a file: Python's literals, mostly Ultralytics'."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from onnx import ModelProto

MOST_TEXT = 1 << 20  # characters of an entry
MOST_PIXELS = 1 << 14  # of a side


class Metadata:
    """The entries of a model. notes: those that could not be read."""

    def __init__(self, model: ModelProto) -> None:
        self._entries: dict[str, str] = {entry.key: entry.value for entry in model.metadata_props}
        self.notes: list[str] = []

    def text(self, key: str) -> str:
        """An entry, "" where there is none."""
        return self._entries.get(key, "")

    def read(self, key: str, reader: Callable[[object], Any], default: Any) -> Any:
        """What `reader` makes of a literal; the default where there is none, and where it raises
        ValueError."""
        if key not in self._entries:
            return default
        try:
            if len(self._entries[key]) > MOST_TEXT:
                raise ValueError("too long")
            return reader(ast.literal_eval(self._entries[key]))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            shown = self._entries[key][:40]
            self.notes.append(f"the file's metadata says {key} {shown!r}, which is not understood")
            return default


def picture_size(model: ModelProto) -> tuple[int, int] | None:
    """Width and height of the picture that a model is exported for, None where nothing says it."""
    size: tuple[int, int] | None = Metadata(model).read("imgsz", picture_sides, None)
    return size


def picture_sides(value: object) -> tuple[int, int]:
    """Width and height, of [height, width] or one number. Raises ValueError."""
    sides = [value, value] if isinstance(value, int) else value
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        raise ValueError("no two sides")
    height, width = sides
    if not all(isinstance(side, int) and 0 < side <= MOST_PIXELS for side in sides):
        raise ValueError("no sides in pixels")
    return width, height
