"""Sizes in bytes as people write them: `4KiB`, `1MB`, `512`."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "kib": 1 << 10, "mib": 1 << 20}


def parse_size(text: str) -> int:
    """Bytes of `512`, `4KiB` (1024), `4KB` (1000), `1.5MB`. Raises `ValueError`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)", text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size: write 512, 4KiB, 64KiB or 1MB")
    return int(float(match[1]) * unit)


def parse_sizes(text: str) -> list[int]:
    """Several sizes, separated by commas; each a positive multiple of 4 bytes (FP32).

    Raises `ValueError`.
    """
    sizes = [parse_size(part) for part in text.split(",") if part.strip()]
    wrong = [size for size in sizes if size < 4 or size % 4]
    if wrong or not sizes:
        raise ValueError(f"feature sizes are positive multiples of 4 bytes: {text!r}")
    return sizes


def size_text(size: int) -> str:
    """The shortest exact way to write a size."""
    for unit, factor in (("MiB", 1 << 20), ("MB", 1000**2), ("KiB", 1 << 10), ("KB", 1000)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
