"""Shared memory of clients: no byte outside a registered region, none held for the dead."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from nodes.gateway.call import Region
from nodes.gateway.shared_memory import RegionBounds, Regions
from swarm.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted
from swarm.samehost.memory import SHM_DIRECTORY

SIZE = 4096
# A client with memory of its own, which it keeps mapped until it is killed.
CLIENT = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(file, 4096)
memory = mmap.mmap(file, 4096)
os.close(file)
print("mapped", flush=True)
time.sleep(600)
"""


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    held = SharedMemory(f"t{secrets.token_hex(6)}", create=True, size=SIZE)
    yield held
    held.close()
    held.unlink()


@pytest.fixture
def regions(memory: SharedMemory) -> Regions:
    """Region `r`: bytes 64 to 128 of the memory."""
    made = Regions()
    made.register("r", memory.name, 64, 64)
    return made


def path_of(name: str) -> Path:
    return Path(SHM_DIRECTORY) / name.lstrip("/")


def test_a_tensor_is_read_from_its_place_and_the_client_may_write_again(
    memory: SharedMemory, regions: Regions
) -> None:
    memory.buf[72:80] = np.array([1.5, -2.0], "<f4").tobytes()
    array = regions.read(Region("r", 8, 8), "FP32", (1, 2))
    memory.buf[72:80] = bytes(8)
    np.testing.assert_array_equal(array, np.array([[1.5, -2.0]], np.float32))


def test_a_tensor_is_written_to_its_place_and_to_no_other(
    memory: SharedMemory, regions: Regions
) -> None:
    regions.write(Region("r", 60, 4), np.array([7], np.int32))
    expected = bytearray(SIZE)
    expected[124:128] = (7).to_bytes(4, "little")
    assert bytes(memory.buf[:SIZE]) == bytes(expected)


@pytest.mark.parametrize(
    ("offset", "size", "shape"),
    [
        (61, 4, (1,)),  # one byte beyond its end
        (-1, 4, (1,)),
        (0, 4, (2,)),  # another size than the shape's
        (2**63 - 4, 4, (1,)),
        (2**64 - 4, 4, (1,)),
        (0, 2**64, (2**62,)),
        (0, 0, (2**31, 2**31, 2**31)),
        (0, 0, (0, 2**62, 2**62)),
    ],
)
def test_no_byte_outside_a_region_is_readable(
    regions: Regions, offset: int, size: int, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidArgument):
        regions.read(Region("r", offset, size), "INT32", shape)


@pytest.mark.parametrize(("offset", "size"), [(61, 0), (-4, 0), (2**63, 0), (0, 3)])
def test_no_byte_outside_a_region_is_written(
    memory: SharedMemory, regions: Regions, offset: int, size: int
) -> None:
    with pytest.raises(InvalidArgument):
        regions.write(Region("r", offset, size), np.array([-1], np.int32))
    assert bytes(memory.buf[:SIZE]) == bytes(SIZE)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 0), (0, SIZE * 4), (SIZE, 1), (-1, 10), (2**64, 1), (0, 2**70)]
)
def test_a_region_lies_in_its_memory(memory: SharedMemory, offset: int, size: int) -> None:
    with pytest.raises(InvalidArgument):
        Regions().register("r", memory.name, offset, size)


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "..", "/..", "../etc/passwd", "a/b", "//a", "/a\0b", "a\n", "ä", "a" * 300],
)
def test_a_key_is_a_plain_name(key: str) -> None:
    with pytest.raises(InvalidArgument, match="no key of shared memory"):
        Regions().register("r", key, 0, 1)


def test_the_memory_of_a_mesh_is_no_clients(tmp_path: Path) -> None:
    (tmp_path / "swarm-default-1-0123456789abcdef").write_bytes(bytes(SIZE))
    with pytest.raises(PermissionDenied):
        Regions(directory=str(tmp_path)).register("r", "/swarm-default-1-0123456789abcdef", 0, SIZE)


def test_a_link_a_folder_and_a_pipe_are_no_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(SIZE))
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for key in ("link", "folder", "pipe"):
        with pytest.raises(PermissionDenied):
            Regions(directory=str(tmp_path)).register("r", key, 0, 1)
    with pytest.raises(NotFound):
        Regions(directory=str(tmp_path)).register("r", "absent", 0, 1)


def test_memory_that_its_client_cuts_short_is_an_error_of_the_request(
    memory: SharedMemory, regions: Regions
) -> None:
    os.truncate(path_of(memory.name), 0)
    with pytest.raises(InvalidArgument, match="cut short"):
        regions.read(Region("r", 0, 4), "INT32", (1,))
    with pytest.raises(InvalidArgument, match="cut short"):
        regions.write(Region("r", 0, 4), np.array([1], np.int32))
    assert path_of(memory.name).stat().st_size == 0


def test_another_memory_of_the_same_key_is_not_the_region(
    memory: SharedMemory, regions: Regions
) -> None:
    other = path_of(memory.name + "-other")
    other.write_bytes(bytes(SIZE))
    other.rename(path_of(memory.name))
    with pytest.raises(NotFound, match="register it again"):
        regions.read(Region("r", 0, 4), "INT32", (1,))


def test_a_name_that_is_in_use_stays_with_its_key(memory: SharedMemory, regions: Regions) -> None:
    regions.register("r", memory.name, 0, 8)
    assert regions.registered("r") == {"r": (memory.name, 0, 8)}
    other = SharedMemory(memory.name + "-other", create=True, size=SIZE)
    try:
        with pytest.raises(InvalidArgument, match="unregister it first"):
            regions.register("r", other.name, 0, 8)
        regions.unregister("r")
        regions.register("r", other.name, 0, 8)
    finally:
        other.close()
        other.unlink()
    with pytest.raises(NotFound):
        regions.registered("absent")
    regions.unregister("")
    assert regions.registered() == {}


def test_the_regions_of_a_client_that_was_killed_make_room(memory: SharedMemory) -> None:
    regions = Regions(RegionBounds(regions=2))
    regions.register("alive", memory.name, 0, 8)
    theirs = path_of(memory.name + "-theirs")
    command = [sys.executable, "-c", CLIENT, str(theirs)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == b"mapped\n"
        regions.register("theirs", theirs.name, 0, 8)
        with pytest.raises(ResourceExhausted):
            regions.register("new", memory.name, 0, 8)
        client.send_signal(signal.SIGKILL)
        client.wait(30)
        regions.register("new", memory.name, 0, 8)
        assert set(regions.registered()) == {"alive", "new"}
        assert theirs.exists()  # the file is its client's, which may come back
    finally:
        client.kill()
        client.wait()
        theirs.unlink()
