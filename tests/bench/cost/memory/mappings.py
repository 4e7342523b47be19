"""The memory of one process as Linux accounts for it, mapping by mapping (`/proc/PID/smaps`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")


@dataclass(frozen=True)
class Mapping:
    """One range of a process's addresses.

    path: the mapped file, `[heap]` and the like, or '' for memory without a file. resident: bytes
    in memory. proportional: the same, where a page that n processes map counts 1/n.
    """

    path: str
    resident: int
    proportional: int


def parse(lines: Iterable[str]) -> Iterator[Mapping]:
    """The mappings in the text of an `smaps` file."""
    path: str | None = None
    resident = 0
    for line in lines:
        if head := _HEAD.match(line):
            path, resident = head[1], 0
        elif line.startswith("Rss:"):
            resident = _bytes(line)
        elif line.startswith("Pss:") and path is not None:
            yield Mapping(path, resident, _bytes(line))


def _bytes(line: str) -> int:
    return int(line.split()[1]) * 1024


def mappings_of(pid: int) -> list[Mapping]:
    """All mappings of a process. Raises `OSError` where it has ended, or is another user's."""
    with Path(f"/proc/{pid}/smaps").open(encoding="utf-8", errors="replace") as file:
        return list(parse(file))
