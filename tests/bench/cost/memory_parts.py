"""What the memory of a process is for: a decision by the mapped file and by reference processes."""

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


INTERPRETER, LIBRARIES, WEIGHTS = "interpreter", "libraries", "weights"
BUFFERS, REST = "buffers", "rest"
KINDS = (INTERPRETER, LIBRARIES, WEIGHTS, BUFFERS, REST)
"""Interpreter and libraries include the private memory that a process has after importing alone.
Buffers are memory that processes share to hand tensors over. The rest is all other private memory:
mostly the workspace of ONNX Runtime and, in the server, the heap."""

_INTERPRETER = re.compile(r"/(python3?[\d.]*|libpython[^/]*|libc[.-][^/]*|ld-linux[^/]*)$")
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$|/nats-server$|/site-packages/|/locale/|/lib/")
_SHARED = re.compile(r"^/dev/shm/|^/memfd:|^/dev/zero")


@dataclass(frozen=True)
class Size:
    """Bytes, as in `Mapping`."""

    resident: int = 0
    proportional: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.resident + other.resident, self.proportional + other.proportional)


@dataclass(frozen=True)
class Reference:
    """Private bytes of processes that do nothing: the bare interpreter, and one that has imported
    the modules of the process in question."""

    interpreter: int
    imported: int


def private_bytes(mappings: Iterable[Mapping]) -> int:
    """Resident bytes that no file backs."""
    return sum(m.resident for m in mappings if kind_of(m) == REST)


def kind_of(mapping: Mapping) -> str:
    """What a mapping is for, as far as its file tells; REST where it has none."""
    path = mapping.path.removesuffix(" (deleted)")
    if not path.startswith("/"):
        return REST
    if _SHARED.search(path):
        return BUFFERS
    if _INTERPRETER.search(path):
        return INTERPRETER
    return LIBRARIES if _LIBRARY.search(path) else WEIGHTS


def parts(mappings: Iterable[Mapping], reference: Reference, weights: int = 0) -> dict[str, Size]:
    """The memory of a process by kind.

    weights: bytes of the weights that it computes with. Those that no file backs lie in private
    memory, and so do interpreter and libraries: their shares are taken from it in this order, each
    as far as there is any.
    """
    found = dict.fromkeys(KINDS, Size())
    for mapping in mappings:
        kind = kind_of(mapping)
        found[kind] += Size(mapping.resident, mapping.proportional)
    private = found[REST]
    missing = max(0, weights - found[WEIGHTS].resident)
    for kind, wanted in (
        (INTERPRETER, reference.interpreter),
        (LIBRARIES, reference.imported - reference.interpreter),
        (WEIGHTS, missing),
    ):
        share = Size(
            max(0, min(wanted, private.resident)), max(0, min(wanted, private.proportional))
        )
        found[kind] += share
        private = Size(private.resident - share.resident, private.proportional - share.proportional)
    found[REST] = private
    return found
