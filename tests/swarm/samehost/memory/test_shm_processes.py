from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.waiting import eventually_now

from swarm.samehost.memory import Claim, ClaimReader, Ring, ShmError, ShmGone, sweep
from swarm.samehost.memory.sweep import OTHER_MESH_GRACE

pytestmark = pytest.mark.processes
Start = Callable[..., Any]
Left = Callable[[], list[Path]]


@pytest.fixture
def reader(mesh: str) -> Any:
    reader = ClaimReader(mesh)
    yield reader
    reader.close()


@pytest.fixture
def alone(mesh: str) -> Iterator[str]:
    """A directory of shared memory of its own: a sweep far in the future would take the segments of
    whatever else runs on this host."""
    directory = Path("/dev/shm") / mesh
    directory.mkdir()
    yield str(directory)
    shutil.rmtree(directory)


def digest(size: int, seed: int) -> str:
    return hashlib.sha256(random.Random(seed).randbytes(size)).hexdigest()


def test_tensors_of_any_size_cross_between_processes(start: Start) -> None:
    sender, receiver = start(), start()

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.one_of(st.integers(1, 300), st.integers(1, 9_000_000)), st.integers(0, 99))
    def crosses(size: int, seed: int) -> None:
        claim = sender.ask("put", size=size, seed=seed)
        assert receiver.ask("open", claim=claim) == digest(size, seed)
        assert receiver.ask("check", claim=claim)
        assert receiver.ask("done", claim=claim)
        assert sender.ask("collect") == 1
        assert sender.ask("outstanding") == 0
        assert not receiver.ask("check", claim=claim)

    crosses()


def test_no_mixture_of_two_tensors_ever_passes_the_check(start: Start, reader: ClaimReader) -> None:
    """The sender recycles one slot as fast as it can while the reader looks at it."""
    sender = start()
    passed = failed = rounds = 0
    while rounds < 3 or not (passed and failed):
        rounds += 1
        assert rounds < 100
        sender.tell("churn", size=300_000, turns=100)
        while isinstance(wire := sender.answer(), str):
            claim = Claim.from_wire(bytes.fromhex(wire))
            try:
                view = reader.open(claim)
            except ShmError:
                failed += 1  # it came too late
                continue
            seen = np.frombuffer(view, dtype=np.uint8).copy()
            if reader.check(claim):
                passed += 1
                assert (seen == seen[0]).all()
            else:
                failed += 1
        assert passed + failed == 100 * rounds


def test_after_sigkill_of_the_sender_claims_stay_good_until_the_grace_is_over(
    start: Start, mesh: str, alone: str
) -> None:
    sender = start(directory=alone)
    reader = ClaimReader(mesh, directory=alone)
    mapped = Claim.from_wire(bytes.fromhex(sender.ask("put", size=50_000, seed=1)))
    queued = Claim.from_wire(bytes.fromhex(sender.ask("put", size=50_000, seed=2)))
    view = reader.open(mapped)
    sender.kill()
    now = time.monotonic()
    assert sweep(mesh, grace=30.0, now=now, directory=alone) == 0
    assert sweep(mesh, grace=30.0, now=now + 29.0, directory=alone) == 0
    assert hashlib.sha256(view).hexdigest() == digest(50_000, 1)
    late = ClaimReader(mesh, directory=alone)
    assert hashlib.sha256(late.open(queued)).hexdigest() == digest(50_000, 2)
    assert sweep(mesh, grace=30.0, now=now + 30.0, directory=alone) == 1
    assert os.listdir(alone) == []
    assert hashlib.sha256(view).hexdigest() == digest(50_000, 1)
    assert reader.check(mapped)
    with pytest.raises(ShmGone):
        ClaimReader(mesh, directory=alone).open(mapped)


@pytest.mark.parametrize("stopped", [False, True])
def test_sweep_never_removes_the_segment_of_a_live_owner(
    start: Start, mesh: str, alone: str, stopped: bool
) -> None:
    sender = start(directory=alone)
    sender.ask("put", size=1000, seed=1)
    if stopped:
        sender.process.send_signal(signal.SIGSTOP)
    later = time.monotonic() + 1e6
    for turn in range(3):
        assert sweep(mesh, grace=0, now=later + turn, directory=alone) == 0
        assert sweep(f"{mesh}-1", grace=0, now=later + turn, directory=alone) == 0
    assert len(os.listdir(alone)) == 1
    sender.kill()
    assert sweep(mesh, grace=0, now=later, directory=alone) == 1


def test_a_process_neither_sweeps_its_own_segment_nor_unlocks_it_by_trying(
    start: Start, mesh: str, alone: str
) -> None:
    ring = Ring(mesh, directory=alone)
    reader = ClaimReader(mesh, directory=alone)
    claim = ring.put([b"features"])
    assert claim is not None
    reader.open(claim)
    reader.close()
    assert sweep(mesh, grace=0, directory=alone) == 0
    assert start(directory=alone).ask("sweep", grace=0) == 0
    assert len(os.listdir(alone)) == 1
    ring.close()


def test_sigkill_of_the_receiver_leaves_nothing(start: Start, left: Left) -> None:
    sender, receiver = start(), start()
    claim = sender.ask("put", size=1_000_000, seed=1)
    assert receiver.ask("open", claim=claim) == digest(1_000_000, 1)
    receiver.kill()
    assert len(left()) == 1
    successor = start()
    assert successor.ask("open", claim=claim) == digest(1_000_000, 1)
    assert sender.ask("release", claim=claim)
    sender.ask("close")
    assert left() == []


def test_many_sweepers_remove_each_dead_segment_exactly_once(start: Start, left: Left) -> None:
    senders, sweepers = [start() for _ in range(3)], [start() for _ in range(3)]
    for sender in senders:
        sender.ask("put", size=1000, seed=1)
    for sender in senders:
        sender.kill()
    removed: list[int] = []

    def all_gone() -> bool:
        """Two at one file at once: the later one leaves it for its next turn. Sweepers of other
        meshes on this host lock it, too."""
        for sweeper in sweepers:
            sweeper.tell("sweep", grace=0)
        removed.extend(sweeper.answer() for sweeper in sweepers)
        return left() == []

    eventually_now(all_gone, "each segment is removed")
    assert sum(removed) == 3


def test_another_mesh_is_left_to_its_own_nodes_unless_there_are_none_for_long(
    start: Start, mesh: str, alone: str
) -> None:
    sender = start(directory=alone)
    sender.ask("put", size=1000, seed=1)
    sender.kill()
    now = time.monotonic()
    for other in (mesh[:-1], f"{mesh}-1"):
        for moment in (now, now + OTHER_MESH_GRACE - 1.0):
            assert sweep(other, grace=0, now=moment, directory=alone) == 0
    assert sweep(f"{mesh}-1", grace=0, now=now + OTHER_MESH_GRACE + 1.0, directory=alone) == 1
    assert os.listdir(alone) == []


def test_nodes_of_the_mesh_need_not_wait_so_long(start: Start, mesh: str, left: Left) -> None:
    sender = start()
    sender.ask("put", size=1000, seed=1)
    sender.kill()
    sweep(f"{mesh}-1", grace=0)
    assert len(left()) == 1
    sweep(mesh, grace=0)
    assert left() == []


def test_an_abandoned_ring_is_left_to_the_sweepers_with_its_claims(
    start: Start, mesh: str, left: Left
) -> None:
    sender, receiver = start(), start()
    claim = sender.ask("put", size=5000, seed=3)
    sender.ask("close", abandon=True)
    assert sender.ask("put", size=10, seed=1) is None
    receiver.ask("sweep", grace=30)
    assert receiver.ask("open", claim=claim) == digest(5000, 3)
    sweep(mesh, grace=0)
    assert left() == []


def test_an_abandoned_ring_without_claims_is_unlinked_at_once(start: Start, left: Left) -> None:
    sender = start()
    sender.ask("release", claim=sender.ask("put", size=5000, seed=3))
    sender.ask("close", abandon=True)
    assert left() == []


def test_a_forked_child_does_not_keep_its_dead_parents_segment_alive(
    start: Start, mesh: str, left: Left
) -> None:
    sender = start()
    sender.ask("put", size=1000, seed=1)
    child, refused = sender.ask("fork")
    try:
        assert refused
        sweep(mesh, grace=0)
        assert len(left()) == 1
        sender.kill()
        os.kill(child, 0)
        sweep(mesh, grace=0)
        assert left() == []
    finally:
        os.kill(child, signal.SIGKILL)
