"""A node's durable state survives torn, foreign and lost files."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodes.connection.checkpoint import MAGIC, MAX_BYTES, Checkpoint

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
    | st.binary(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=20,
)
STATES = st.dictionaries(st.text(max_size=20), VALUES, max_size=8)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(state=STATES)
def test_what_was_saved_last_is_restored(tmp_path: Path, state: dict[str, Any]) -> None:
    Checkpoint(str(tmp_path), "m", "shard-1").save(state)
    assert Checkpoint(str(tmp_path), "m", "shard-1").load() == state


def test_each_role_of_each_mesh_has_its_own(tmp_path: Path) -> None:
    for mesh in ("m", "n"):
        for role in ("shard-1", "shard-2"):
            Checkpoint(str(tmp_path), mesh, role).save({"of": f"{mesh} {role}"})
    assert Checkpoint(str(tmp_path), "m", "shard-2").load() == {"of": "m shard-2"}
    assert len(list(tmp_path.iterdir())) == 4  # and no temporary file


def test_without_a_directory_nothing_is_kept() -> None:
    checkpoint = Checkpoint("", "m", "shard-1")
    checkpoint.save({"a": 1})
    assert checkpoint.load() == {}


def test_the_first_start_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Checkpoint(str(tmp_path / "deep" / "er"), "m", "shard-1").load() == {}
    assert caplog.records == []


def test_a_directory_that_is_missing_is_made(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "deep" / "er"), "m", "shard-1")
    checkpoint.save({"a": 1})
    assert checkpoint.load() == {"a": 1}


def test_a_torn_file_is_ignored_with_a_warning_wherever_it_was_torn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint(str(tmp_path), "m", "shard-1")
    checkpoint.save({"versions": ["1", "2"], "compute_p99_us": {"digits/1": 1200}})
    assert checkpoint.path is not None
    whole = checkpoint.path.read_bytes()
    caplog.set_level(logging.WARNING)
    for length in range(len(whole)):
        checkpoint.path.write_bytes(whole[:length])
        caplog.clear()
        assert checkpoint.load() == {}
        assert "is ignored" in caplog.text
    checkpoint.path.write_bytes(whole)
    assert checkpoint.load()["versions"] == ["1", "2"]


def test_a_single_changed_bit_is_noticed(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path), "m", "shard-1")
    checkpoint.save({"versions": ["1", "2"]})
    assert checkpoint.path is not None
    whole = bytearray(checkpoint.path.read_bytes())
    for bit in range(len(whole) * 8):
        whole[bit // 8] ^= 1 << bit % 8
        checkpoint.path.write_bytes(whole)
        assert checkpoint.load() == {}
        whole[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b'{"versions": ["1"]}',
        MAGIC,
        MAGIC + b"\0\0\0\0",  # the checksum of nothing, and nothing
        b"SWARMCP2" + b"\0" * 20,
        os.urandom(5000),
    ],
    ids=["empty", "zero", "json", "magic", "no body", "later version", "random"],
)
def test_a_foreign_file_is_ignored_and_replaced_by_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    checkpoint = Checkpoint(str(tmp_path), "m", "shard-1")
    assert checkpoint.path is not None
    checkpoint.path.write_bytes(content)
    assert checkpoint.load() == {}
    assert "is ignored" in caplog.text
    checkpoint.save({"a": 1})
    assert checkpoint.load() == {"a": 1}


def test_a_directory_in_the_files_place_is_no_crash(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path), "m", "shard-1")
    assert checkpoint.path is not None
    checkpoint.path.mkdir()
    assert checkpoint.load() == {}


def test_an_absurdly_large_file_is_ignored(tmp_path: Path) -> None:
    import zlib

    from swarm.wire.maps import pack

    checkpoint = Checkpoint(str(tmp_path), "m", "shard-1")
    assert checkpoint.path is not None
    body = pack({"a": b"\0" * (MAX_BYTES + 1)})
    checkpoint.path.write_bytes(MAGIC + zlib.crc32(body).to_bytes(4, "big") + body)
    assert checkpoint.load() == {}


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_save_that_fails_leaves_what_was_saved_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The disk is full, at any moment: the old state is there, whole, and nothing else."""
    checkpoint = Checkpoint(str(tmp_path), "m", "shard-1")
    checkpoint.save({"number": 1})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(Path, "open", full)
        else:
            patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space"):
            checkpoint.save({"number": 2})
    assert checkpoint.load() == {"number": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["m-shard-1.checkpoint"]
    checkpoint.save({"number": 3})
    assert checkpoint.load() == {"number": 3}


def test_a_reader_sees_the_old_or_the_new_state_and_never_a_mixture(tmp_path: Path) -> None:
    import threading

    writer = Checkpoint(str(tmp_path), "m", "shard-1")
    writer.save({"n": 0, "fill": "0" * 50_000})
    ended = threading.Event()
    seen: list[dict[str, Any]] = []

    def read() -> None:
        reader = Checkpoint(str(tmp_path), "m", "shard-1")
        while not ended.is_set():
            seen.append(reader.load())

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 12):
        writer.save({"n": number, "fill": str(number % 10) * 50_000})
    ended.set()
    thread.join()
    assert seen
    assert all(set(s["fill"]) == {str(s["n"] % 10)} for s in seen)
