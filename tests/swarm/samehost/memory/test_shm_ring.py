from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.samehost.memory import (
    Claim,
    ClaimError,
    ClaimReader,
    Ring,
    ShmGone,
    ShmUnavailable,
    host_id,
    slots,
    sweep,
    unavailable,
)
from swarm.samehost.memory.segment import OwnedSegment

MB = 1 << 20
Left = Callable[[], list[Path]]


@pytest.fixture
def ring(mesh: str) -> Any:
    ring = Ring(mesh, capacity=MB, max_age=10.0, idle_after=60.0)
    yield ring
    ring.close()


@pytest.fixture
def reader(mesh: str) -> Any:
    reader = ClaimReader(mesh)
    yield reader
    reader.close()


def put(ring: Ring, *parts: bytes, now: float | None = None) -> Claim:
    claim = ring.put(parts, now=now)
    assert claim is not None
    return claim


def test_nothing_exists_before_the_first_put_and_nothing_after_close(
    ring: Ring, left: Left
) -> None:
    assert left() == []
    put(ring, b"features")
    assert len(left()) == 1
    ring.close()
    ring.close()
    assert left() == []
    assert ring.put([b"features"]) is None


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_segment_is_readable_by_its_owner_only_whatever_the_umask(
    ring: Ring, left: Left, umask: int
) -> None:
    before = os.umask(umask)
    try:
        put(ring, b"features")
    finally:
        os.umask(before)
    status = left()[0].stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_uid == os.geteuid()


def test_parts_are_joined_and_start_aligned(ring: Ring, reader: ClaimReader) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    claim = ring.put([b"ab", memoryview(array), bytearray(), np.empty((0, 3)).data, b"z"])
    assert claim is not None
    view = reader.open(claim)
    assert bytes(view) == b"ab" + array.tobytes() + b"z"
    assert np.frombuffer(view, dtype=np.uint8).ctypes.data % 64 == 0
    with pytest.raises(TypeError):
        view[0] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        ring.put([memoryview(b"abcdef")[::2]])


def test_the_bound_holds_and_a_full_ring_answers_none(ring: Ring, left: Left) -> None:
    claims = []
    while claim := ring.put([bytes(100_000)]):
        claims.append(claim)
    assert len(claims) == 10
    assert all(ring.put([bytes(100_000)]) is None for _ in range(100))
    status = left()[0].stat()
    assert status.st_size <= MB
    assert status.st_blocks * 512 <= MB
    assert ring.stats.refused == 101
    assert ring.release(claims[3])
    assert ring.put([bytes(100_000)]) is not None


def test_what_can_never_fit_or_is_empty_is_left_to_the_wire(ring: Ring, left: Left) -> None:
    assert ring.put([bytes(MB)]) is None
    assert ring.put([]) is None
    assert ring.put([b""]) is None
    assert left() == []


def test_a_slot_stays_until_it_is_released_and_is_released_once(
    ring: Ring, reader: ClaimReader
) -> None:
    first, second = put(ring, b"first"), put(ring, b"second")
    assert ring.release(first)
    assert not ring.release(first)
    third = put(ring, b"third")
    assert third.offset == first.offset
    assert not ring.release(first)
    assert bytes(reader.open(second)) == b"second"
    assert bytes(reader.open(second)) == b"second"
    assert ring.stats.released == 1
    assert ring.stats.outstanding == 2


def test_what_a_receiver_is_done_with_is_free_for_the_next(ring: Ring, reader: ClaimReader) -> None:
    first, second = put(ring, b"first"), put(ring, b"second")
    reader.open(first)
    assert reader.done(first)
    assert reader.check(first)  # until the owner looks
    assert ring.collect() == 1
    third = put(ring, b"third")
    assert third.offset == first.offset
    assert not reader.check(first)
    assert not reader.done(first)  # by a receiver that comes late: the slot is another's
    assert (ring.stats.outstanding, ring.stats.released) == (2, 1)
    assert bytes(reader.open(second)) == b"second"
    assert bytes(reader.open(third)) == b"third"


def test_a_ring_without_room_looks_by_itself_what_receivers_are_done_with(
    ring: Ring, reader: ClaimReader
) -> None:
    first = put(ring, bytes(900_000))
    assert ring.put([bytes(900_000)]) is None
    assert reader.done(first)
    assert put(ring, bytes(900_000)).offset == first.offset


def test_expired_slots_make_room_also_when_some_were_given_back(
    ring: Ring, reader: ClaimReader
) -> None:
    put(ring, bytes(500_000), now=100.0)
    assert reader.done(put(ring, bytes(200_000), now=105.0))
    assert ring.put([bytes(700_000)], now=111.0) is not None


def test_a_receiver_that_is_late_by_any_time_hits_no_payload(
    ring: Ring, reader: ClaimReader
) -> None:
    """Its slot lies in the middle of a larger one by then."""
    old = [put(ring, bytes(1000), now=100.0) for _ in range(20)]
    assert ring.reclaim(111.0) == 20
    content = np.random.default_rng(1).bytes(50_000)
    large = put(ring, content, now=112.0)
    assert not any(reader.done(claim) for claim in old)
    assert bytes(reader.open(large)) == content
    assert ring.stats.outstanding == 1


def test_no_more_slots_than_words_are_in_use(ring: Ring, reader: ClaimReader) -> None:
    claims = [put(ring, b"x") for _ in range(slots.DONE_WORDS)]
    assert len({claim.word for claim in claims}) == slots.DONE_WORDS
    assert ring.put([b"x"]) is None
    for claim in claims[::2]:
        assert reader.done(claim)
    assert len([put(ring, b"y") for _ in claims[::2]]) == slots.DONE_WORDS // 2
    assert ring.put([b"x"]) is None
    assert all(bytes(reader.open(claim)) == b"x" for claim in claims[1::2])


def test_only_slots_older_than_max_age_are_reclaimed(ring: Ring, reader: ClaimReader) -> None:
    old, young = put(ring, b"old", now=100.0), put(ring, b"young", now=105.0)
    for claim in (old, young):
        reader.open(claim)
    assert ring.reclaim(110.0) == 0
    assert ring.reclaim(111.0) == 1
    assert not reader.check(old)
    assert reader.check(young)
    assert ring.stats.expired == 1


def test_a_full_ring_makes_room_from_expired_slots_by_itself(ring: Ring) -> None:
    put(ring, bytes(900_000), now=100.0)
    assert ring.put([bytes(900_000)], now=105.0) is None
    assert ring.put([bytes(900_000)], now=111.0) is not None


def test_an_idle_ring_returns_its_memory_and_comes_back(
    ring: Ring, reader: ClaimReader, left: Left
) -> None:
    ring.release(put(ring, b"features", now=100.0))
    ring.reclaim(159.0)
    assert len(left()) == 1
    ring.reclaim(160.0)
    assert left() == []
    assert ring.stats.allocated_bytes == 0
    assert bytes(reader.open(put(ring, b"more", now=161.0))) == b"more"


def test_a_segment_deleted_by_somebody_is_replaced(
    ring: Ring, reader: ClaimReader, left: Left
) -> None:
    claim = put(ring, b"features", now=100.0)
    left()[0].unlink()
    with pytest.raises(ShmGone):
        reader.open(claim)
    ring.reclaim(100.1)
    assert bytes(reader.open(put(ring, b"more", now=100.2))) == b"more"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 200_000),
            st.tuples(st.sampled_from(["release", "done"]), st.integers(0, 30)),
            st.tuples(st.just("reclaim"), st.integers(1, 8)),
        ),
        max_size=40,
    )
)
def test_outstanding_claims_keep_their_bytes_and_all_others_are_stale(todo: list[Any]) -> None:
    mesh = f"test-property-{os.getpid()}"
    ring, reader = Ring(mesh, capacity=MB, max_age=10.0), ClaimReader(mesh)
    held: list[tuple[Claim, bytes, float]] = []
    gone: list[Claim] = []
    now = 100.0
    try:
        for turn, step in enumerate(todo):
            if isinstance(step, int):
                content = np.random.default_rng(turn).bytes(step)
                claim = ring.put([content[:7], content[7:]], now=now)
                keep = [item for item in held if claim or now - item[2] <= 10.0]
                gone += [c for c, _, since in held if now - since > 10.0 and not reader.check(c)]
                held = [item for item in keep if item[0] not in gone]
                if claim:
                    held.append((claim, content, now))
            elif step[0] in ("release", "done") and held:
                claim, _, _ = held.pop(step[1] % len(held))
                assert ring.release(claim) if step[0] == "release" else reader.done(claim)
                gone.append(claim)
            elif step[0] == "reclaim":
                now += step[1]
                expired = [item for item in held if now - item[2] > 10.0]
                assert ring.reclaim(now) == len(expired)
                gone += [item[0] for item in expired]
                held = [item for item in held if now - item[2] <= 10.0]
            assert ring.stats.outstanding == len(held)
            ring.collect()
            assert all(bytes(reader.open(claim)) == content for claim, content, _ in held)
            assert not any(reader.check(claim) for claim in gone)
        assert len({claim.sequence for claim in gone}) == len(gone)
    finally:
        reader.close()
        ring.close()


@pytest.mark.parametrize(
    ("version", "swept"), [(0, False), (1, True), (3, True), (4, True), (5, False)]
)
def test_what_the_dead_of_an_older_version_left_is_swept_and_never_read(
    ring: Ring, reader: ClaimReader, mesh: str, left: Left, version: int, swept: bool
) -> None:
    claim = put(ring, b"features")
    with open(left()[0], "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), version.to_bytes(4, "little"), len(slots.SEGMENT_MAGIC))
    ring.close(abandon=True)
    if version != slots.SEGMENT_VERSION:
        with pytest.raises(ClaimError):
            reader.open(claim)
    sweep(mesh, grace=0.0)
    assert (left() == []) is swept


def test_threads_may_put_and_release_at_once(mesh: str) -> None:
    ring, reader = Ring(mesh, capacity=4 * MB), ClaimReader(mesh)
    failures = []

    def work(seed: int) -> None:
        for turn in range(150):
            content = bytes([seed, turn % 256]) * 5000
            claim = put(ring, content)
            if bytes(reader.open(claim)) != content or not reader.check(claim):
                failures.append(claim)
            ring.release(claim)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ring.stats.put == ring.stats.released == 600
    reader.close()
    ring.close()


def test_a_slot_is_invalid_for_as_long_as_it_is_being_written(mesh: str) -> None:
    segment = OwnedSegment.create("/dev/shm", mesh, MB)
    segment.grow(MB)
    slots.write(segment.view, 4096, 10, [memoryview(b"before")], 6)
    slots.invalidate(segment.view, 4096, 10)  # as whoever frees a slot does
    seen = []

    class Watched(list[memoryview]):
        def __iter__(self) -> Iterator[memoryview]:
            for part in super().__iter__():
                seen.append(slots.SLOT_HEADER.unpack_from(segment.memory, 4096)[1] % 2)
                yield part

    slots.write(segment.view, 4096, 12, Watched([memoryview(b"after"), memoryview(b"wards")]), 10)
    assert seen == [1, 1]
    assert slots.SLOT_HEADER.unpack_from(segment.memory, 4096)[1] == 12
    segment.close(unlink=True)


@pytest.mark.simulated
async def test_drain_waits_for_the_last_release_and_no_longer(
    ring: Ring, reader: ClaimReader
) -> None:
    assert await ring.drain(0.0)
    claims = [put(ring, b"a"), put(ring, b"b")]
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert not await ring.drain(2.0)
    assert loop.time() - began == pytest.approx(2.0, abs=0.1)
    draining = asyncio.create_task(ring.drain(60.0))
    await asyncio.sleep(5.0)
    ring.release(claims[0])
    await asyncio.sleep(5.0)
    assert not draining.done()
    assert reader.done(claims[1])
    assert await draining
    assert loop.time() - began < 12.1


def test_without_shared_memory_put_answers_none_and_says_why(mesh: str, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    ring, reader = Ring(mesh, directory=absent), ClaimReader(mesh, directory=absent)
    assert ring.put([b"features"]) is None
    assert "No such file" in (ring.reason or "")
    assert "No such file" in (unavailable(absent) or "")
    claim = Claim("0" * 16, f"swarm-{mesh}-1-{'0' * 16}", 4096, 1, 2, 3, 0)
    with pytest.raises(ShmUnavailable):
        reader.open(claim)
    assert not reader.check(claim)
    with pytest.raises(ShmUnavailable):
        host_id(absent)
    ring.close()


def test_on_another_system_it_is_unavailable_and_says_so(
    mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    ring = Ring(mesh)
    assert ring.put([b"features"]) is None
    assert "Linux only" in (ring.reason or "")
    with pytest.raises(ShmUnavailable):
        host_id()


def test_an_unavailable_directory_is_tried_again_later(mesh: str, tmp_path: Path) -> None:
    late = tmp_path / "late"
    ring = Ring(mesh, directory=str(late))
    assert ring.put([b"features"], now=100.0) is None
    late.mkdir()
    assert ring.put([b"features"], now=104.0) is None
    assert ring.put([b"features"], now=105.0) is not None
    assert ring.reason is None
    ring.close()
    assert list(late.iterdir()) == []


@pytest.mark.parametrize(("blind", "why"), [(False, "no room"), (True, "No space left")])
def test_a_small_dev_shm_fills_up_without_killing_anyone(
    start: Callable[..., Any], tmp_path: Path, blind: bool, why: str
) -> None:
    mount = f'mount -t tmpfs -o size=12m,mode=1777 tmpfs {tmp_path} && exec "$@"'
    inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are not allowed here")
    peer = start(*inside, directory=str(tmp_path))
    count, reason = peer.ask("fill", size=500_000, blind=blind)
    assert 8 <= count <= 24
    assert why in reason
    assert peer.ask("put", size=500_000, seed=1) is None
    assert peer.ask("put", size=1000, seed=1) is not None


def test_host_id_is_the_same_for_all_and_differs_for_another_mount(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    wire = start().ask("put", size=10, seed=1)
    assert Claim.from_wire(bytes.fromhex(wire)).host == host_id()
    assert host_id(str(tmp_path)) != host_id()


def test_a_process_with_clocks_of_its_own_is_on_no_common_host() -> None:
    """CLOCK_MONOTONIC, by which messages between processes are timed, has another zero there."""
    told = "from swarm.samehost.memory import host_id; print(host_id())"
    inside = ["unshare", "--time", "--monotonic", "1000", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("no time namespaces for this user here")
    ids = [
        subprocess.run(
            [*before, sys.executable, "-c", told], check=True, capture_output=True, text=True
        ).stdout
        for before in ([], inside)
    ]
    assert ids[0] == f"{host_id()}\n"
    assert ids[1] != ids[0]
