from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.samehost.memory import (
    Claim,
    ClaimError,
    ClaimReader,
    Ring,
    ShmError,
    ShmForeign,
    ShmGone,
    ShmStale,
    ShmUnavailable,
    slots,
    sweep,
)

MB = 1 << 20
Left = Callable[[], list[Path]]


@pytest.fixture
def ring(mesh: str) -> Any:
    ring = Ring(mesh)
    yield ring
    ring.close()


@pytest.fixture
def reader(mesh: str) -> Any:
    reader = ClaimReader(mesh)
    yield reader
    reader.close()


def put(ring: Ring, content: bytes) -> Claim:
    claim = ring.put([content])
    assert claim is not None
    return claim


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_slot_recycled_during_use_is_detected_after_use(ring: Ring, reader: ClaimReader) -> None:
    claim = put(ring, b"a" * 1000)
    view = reader.open(claim)
    assert reader.check(claim)
    ring.release(claim)
    assert not reader.check(claim)
    later = put(ring, b"b" * 1000)
    assert later.offset == claim.offset
    assert bytes(view) == b"b" * 1000
    assert not reader.check(claim)
    with pytest.raises(ShmStale):
        reader.open(claim)
    assert bytes(reader.open(later)) == b"b" * 1000


def test_a_claim_into_the_middle_of_a_later_slot_is_stale(ring: Ring, reader: ClaimReader) -> None:
    first, second = put(ring, b"a" * 1000), put(ring, b"b" * 1000)
    ring.release(first)
    ring.release(second)
    put(ring, bytes(5000))
    with pytest.raises(ShmStale):
        reader.open(second)


@pytest.mark.parametrize("length", [20_000, 1_638_400])
def test_a_torn_write_is_detected(ring: Ring, reader: ClaimReader, left: Left, length: int) -> None:
    claim = put(ring, bytes(length))
    reader.open(claim)
    trailer = claim.offset + slots.trailer_offset(length)
    half = claim.offset + slots.SLOT_HEADER_BYTES + length // 2
    for at, damage in [
        (claim.offset + 8, (claim.sequence + 1).to_bytes(8, "little")),  # being written
        (trailer, (claim.sequence - 2).to_bytes(8, "little")),  # the end never arrived
        (half, b"\xff" * (length // 4)),  # the header arrived before the bytes
    ]:
        with open(left()[0], "r+b", buffering=0) as file:
            before = os.pread(file.fileno(), len(damage), at)
            os.pwrite(file.fileno(), damage, at)
            # After a use the owner's sequence says it; what came late was seen by `open`.
            assert reader.check(claim) is (at != claim.offset + 8)
            with pytest.raises(ShmStale):
                reader.open(claim)
            os.pwrite(file.fileno(), before, at)
        assert reader.check(claim)


def test_a_closed_ring_is_gone_but_what_is_mapped_stays_readable(
    ring: Ring, reader: ClaimReader, mesh: str
) -> None:
    mapped, other = put(ring, b"mapped"), ClaimReader(mesh)
    view = reader.open(mapped)
    ring.close()
    assert bytes(view) == b"mapped"
    assert reader.check(mapped)
    with pytest.raises(ShmGone):
        other.open(mapped)
    assert reader.prune() == 0  # the view is in use
    del view
    assert reader.prune() == 1
    with pytest.raises(ShmGone):
        reader.open(mapped)


def test_memory_in_use_is_still_checked_when_its_segment_was_mapped_anew_and_closed(
    ring: Ring, mesh: str
) -> None:
    """The view holds the old mapping only: the new one may go to make room for others."""
    reader, other = ClaimReader(mesh, most_segments=1), Ring(mesh)
    claim = put(ring, b"features")
    view = reader.open(claim)
    reader.open(put(ring, b"x" * (9 * MB)))  # the segment has grown
    reader.open(put(other, b"other"))
    assert bytes(view) == b"features"
    assert reader.check(claim)
    assert not reader.check(claim._replace(offset=1 << 40))
    ring.release(claim)
    assert not reader.check(claim)
    del view
    reader.close()
    other.close()


def test_a_check_beside_a_close_in_another_thread_raises_nothing(ring: Ring, mesh: str) -> None:
    reader = ClaimReader(mesh)
    claim = put(ring, b"features")
    reader.open(claim)
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            reader.close()
            reader.open(claim)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert all(reader.check(claim) for _ in range(3000))
    finally:
        ended.set()
        thread.join(10)
    reader.close()


def test_a_segment_cut_off_while_it_is_mapped_is_gone(
    ring: Ring, reader: ClaimReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look whether the slot is within it, and the look how long it is."""
    claim = put(ring, b"features" * 1000)
    reader.done(claim)  # opens the segment, and maps nothing
    short = os.stat_result([0o100600, 0, 0, 1, 0, 0, 4096, 0, 0, 0])
    monkeypatch.setattr("swarm.samehost.memory.reader.os.fstat", lambda _: short)
    with pytest.raises(ShmGone):
        reader.open(claim)


def test_a_growing_segment_keeps_old_views_valid(ring: Ring, reader: ClaimReader) -> None:
    small = put(ring, b"small")
    view = reader.open(small)
    large = put(ring, b"x" * (9 * MB))
    assert len(reader.open(large)) == 9 * MB
    assert bytes(view) == b"small"
    assert reader.check(small)
    assert reader.check(large)


def test_mappings_are_bounded_and_never_taken_from_a_view_in_use(mesh: str) -> None:
    rings = [Ring(mesh) for _ in range(6)]
    claims = [put(ring, bytes([number])) for number, ring in enumerate(rings)]
    before = descriptors()
    reader = ClaimReader(mesh, most_segments=2)
    view = reader.open(claims[0])
    for claim in claims[1:]:
        assert len(reader.open(claim)) == 1
    assert descriptors() - before <= 2 * 2
    assert bytes(view) == b"\0"
    assert [bytes(reader.open(claim))[0] for claim in claims] == list(range(6))
    reader.close()
    assert bytes(view) == b"\0"
    del view
    assert descriptors() == before
    for ring in rings:
        ring.close()


def test_a_ring_and_a_reader_leave_no_descriptor_open(mesh: str) -> None:
    before = descriptors()
    for _ in range(5):
        ring, reader = Ring(mesh), ClaimReader(mesh)
        reader.open(put(ring, b"features"))
        reader.close()
        ring.close()
    assert descriptors() == before


def test_a_process_without_descriptors_left_is_told_so(ring: Ring, reader: ClaimReader) -> None:
    claim = put(ring, b"features")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(ShmForeign):
        reader.open(claim._replace(host="0" * 16))  # knows its own host id from now on
    with open("/dev/null") as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, hard))
        try:
            with pytest.raises(ShmUnavailable):
                reader.open(claim)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bytes(reader.open(claim)) == b"features"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"host": "0" * 16}, ShmForeign),
        ({"segment": "swarm-other-1-0123456789abcdef"}, ClaimError),
        ({"segment": "../../etc/passwd"}, ClaimError),
        ({"offset": 0}, ClaimError),
        ({"offset": 64}, ClaimError),
        ({"offset": 1 << 46}, ClaimError),
        ({"length": (1 << 47) - 1}, ClaimError),
        ({"length": 4 * MB}, ClaimError),
        ({"offset": 8192}, ShmStale),
        ({"length": 7}, ShmStale),
        ({"sequence": 2}, ShmStale),
        ({"checksum": 2}, ShmStale),
    ],
)
def test_a_hostile_claim_is_a_typed_error(
    ring: Ring, reader: ClaimReader, fields: dict[str, Any], error: type[ShmError]
) -> None:
    hostile = put(ring, b"features")._replace(**fields)
    before = descriptors()
    with pytest.raises(error):
        reader.open(hostile)
    assert not reader.check(hostile)
    assert descriptors() - before <= 2


def symlink(path: Path, original: Path) -> None:
    path.symlink_to(original)


def fifo(path: Path, _original: Path) -> None:
    os.mkfifo(path, 0o600)


def folder(path: Path, _original: Path) -> None:
    path.mkdir(0o700)


def readable_by_all(path: Path, original: Path) -> None:
    path.write_bytes(original.read_bytes())
    path.chmod(0o644)


def empty(path: Path, _original: Path) -> None:
    path.touch(0o600)


def no_header(path: Path, original: Path) -> None:
    path.write_bytes(b"\0" * len(original.read_bytes()))
    path.chmod(0o600)


def cut_off(path: Path, original: Path) -> None:
    path.write_bytes(original.read_bytes()[:4200])
    path.chmod(0o600)


def of_another_user(path: Path, original: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path.write_bytes(original.read_bytes())
    path.chmod(0o600)
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    "make", [symlink, fifo, folder, readable_by_all, empty, no_header, cut_off, of_another_user]
)
def test_a_file_that_is_no_segment_of_ours_is_refused_and_left_alone(
    ring: Ring, reader: ClaimReader, left: Left, mesh: str, make: Callable[[Path, Path], None]
) -> None:
    claim = put(ring, b"features" * 100)
    original = left()[0]
    trap = original.with_name(f"swarm-{mesh}-1-{'f' * 16}")
    try:
        make(trap, original)
        with pytest.raises(ClaimError):
            reader.open(claim._replace(segment=trap.name))
        if make is not cut_off:  # has our header and no owner: swept like any other
            sweep(mesh, grace=0)
            assert os.path.lexists(trap)
    finally:
        if trap.is_dir():
            trap.rmdir()
        else:
            trap.unlink(missing_ok=True)


def test_a_segment_cut_off_after_it_was_mapped_is_an_error_not_a_crash(
    ring: Ring, reader: ClaimReader, left: Left, mesh: str
) -> None:
    claim = put(ring, b"features" * 10_000)
    original = left()[0]
    twin = original.with_name(f"swarm-{mesh}-1-{'e' * 16}")
    twin.write_bytes(original.read_bytes())
    twin.chmod(0o600)
    claim = claim._replace(segment=twin.name)
    reader.open(claim)
    os.truncate(twin, 8192)
    with pytest.raises(ClaimError):
        reader.open(claim)
