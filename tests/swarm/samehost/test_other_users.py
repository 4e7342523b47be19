"""A process of another user of this host can neither read features nor hand over work."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from host_processes import LIMIT, Make, Process, directory, next_of
from other_user import as_another_user, needs_another_user

from swarm.errors import NotFound
from swarm.samehost.host_socket import frame_head
from swarm.samehost.memory import ClaimError, ClaimReader, Ring, ShmError

pytestmark = needs_another_user
MESH = "otherusers"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may write to, as /dev/shm: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def datagram(subject: str, data: bytes) -> bytes:
    return frame_head(len(data), subject, "") + data


def send_to(path: Path, message: bytes) -> str:
    """Send as another user; the error's name, or "sent"."""

    def work() -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
            try:
                mine.connect(str(path))
                mine.send(message)
            except OSError as error:
                return type(error).__name__
        return "sent"

    return str(as_another_user(work))


@pytest.fixture
async def victim(open_folder: Path) -> AsyncIterator[Process]:
    process = Process(str(open_folder))
    yield process
    process.close()


async def test_another_user_cannot_reach_a_process_s_socket(
    victim: Process, open_folder: Path
) -> None:
    path = directory(open_folder) / victim.open()
    assert send_to(path, datagram("lane", b"work")) == "PermissionError"


async def test_a_datagram_of_another_user_is_dropped_and_counted_whatever_the_rights_are(
    victim: Process, open_folder: Path
) -> None:
    path = directory(open_folder) / victim.open()
    got = await next_of(victim, "lane")
    path.parent.chmod(0o711)
    path.chmod(0o666)
    assert send_to(path, datagram("lane", b"work")) == "sent"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.sendto(datagram("lane", b"ours"), str(path))
    data, _ = await asyncio.wait_for(got.get(), LIMIT)
    assert data == b"ours"
    assert (victim.foreign, victim.received, victim.errors) == (1, 1, 0)
    assert got.empty()


async def test_descriptors_that_come_along_are_not_taken(
    victim: Process, open_folder: Path
) -> None:
    path = directory(open_folder) / victim.open()
    got = await next_of(victim, "lane")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.connect(str(path))
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(own, [datagram("lane", b"ours")], [own.fileno()] * 50)
        assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"ours"
        assert len(os.listdir("/proc/self/fd")) == before


async def test_nothing_is_sent_into_a_directory_that_another_user_made(
    victim: Process, open_folder: Path
) -> None:
    victim.open()
    theirs = directory(open_folder)
    inbox = "_INBOX.theirs"
    for entry in theirs.iterdir():
        entry.unlink()
    theirs.rmdir()  # as a cleaner would

    def trap() -> None:
        theirs.mkdir(mode=0o777)
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        mine.bind(str(theirs / inbox))
        (theirs / inbox).chmod(0o777)

    assert as_another_user(trap) is None
    assert (theirs / inbox).exists()
    assert not victim.send(inbox, "lane", [b"features"])
    victim.tend()
    assert victim.open() == "", "and nothing is received there"


async def test_no_samples_are_taught_into_a_directory_that_another_user_made(
    open_folder: Path,
) -> None:
    teaching = pytest.importorskip("swarm.learning.teaching")
    theirs = open_folder / "teach"
    as_another_user(lambda: theirs.mkdir(mode=0o777))
    with pytest.raises(NotFound):
        await teaching.teach(
            *("default", "digits", "", {"x": np.zeros(3, np.float32)}, np.zeros(1, np.int64)),
            timeout=LIMIT,
            directory=str(theirs),
        )


def test_another_user_can_neither_read_nor_release_tensors_in_shared_memory(
    open_folder: Path,
) -> None:
    ring = Ring(MESH, directory=str(open_folder))
    try:
        claim = ring.put([b"features" * 1000])
        assert claim is not None
        segment = open_folder / claim.segment

        def attack() -> list[str]:
            said = []
            for flags in (os.O_RDONLY, os.O_RDWR):
                try:
                    os.close(os.open(segment, flags))
                    said.append("opened")
                except OSError as error:
                    said.append(type(error).__name__)
            reader = ClaimReader(MESH, directory=str(open_folder))
            try:
                reader.open(claim)
                said.append("read")
            except ShmError as error:
                said.append(type(error).__name__)
            said.append(str(reader.done(claim)))
            return said

        # Its host id differs, since the user is part of it.
        assert as_another_user(attack) == ["PermissionError"] * 2 + ["ShmForeign", "False"]
        assert ring.holds(claim)
    finally:
        ring.close()


def test_a_segment_that_another_user_made_is_not_opened(open_folder: Path) -> None:
    ring = Ring(MESH, directory=str(open_folder))
    try:
        claim = ring.put([b"x" * 1000])
        assert claim is not None
        os.chown(open_folder / claim.segment, 65534, 65534)
        reader = ClaimReader(MESH, directory=str(open_folder))
        with pytest.raises(ClaimError, match="belongs to user"):
            reader.open(claim)
        reader.close()
    finally:
        ring.close()


async def test_this_user_s_processes_reach_each_other(make: Make) -> None:
    a, b = make(), make()
    a.open()
    got = await next_of(b, "lane")
    assert a.send(b.open(), "lane", [b"work"])
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"work"
    assert b.foreign == 0
