"""Encrypted artifacts open whole and unchanged, or not at all."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import BadKey, BadSeal
from swarm.security.sealed import CHUNK, ModelKey

KEY = ModelKey(bytes(range(32)))


@cache
def plaintext() -> bytes:
    """Three chunks and a half; all chunks differ."""
    return b"".join(bytes([number]) * CHUNK for number in range(3)) + b"\3" * (CHUNK // 2)


@cache
def parts() -> tuple[bytes, ...]:
    """The header and four chunks."""
    return tuple(KEY.seal([plaintext()]))


@cache
def other_parts() -> tuple[bytes, ...]:
    """The same bytes, sealed again."""
    return tuple(KEY.seal([plaintext()]))


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_every_size_comes_back_bit_for_bit(size: int) -> None:
    data = os.urandom(size)
    pieces = [data[at : at + 300_001] for at in range(0, size, 300_001)]
    sealed = b"".join(KEY.seal(pieces))
    assert KEY.unseal(sealed, "x") == data
    assert len(sealed) == 83 + size + 16 * max(1, -(-size // CHUNK))
    assert len(data) < 32 or data[:32] not in sealed


def test_each_artifact_has_a_data_key_of_its_own() -> None:
    first, second = parts(), other_parts()
    assert all(one != other for one, other in zip(first, second, strict=True))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 4), max_size=6))
def test_chunks_left_out_repeated_or_in_another_order_are_refused(order: list[int]) -> None:
    sealed = parts()
    given_bytes = b"".join([sealed[0], *(sealed[number] for number in order)])
    if order == [1, 2, 3, 4]:
        assert KEY.unseal(given_bytes, "x") == plaintext()
    else:
        with pytest.raises(BadSeal):
            KEY.unseal(given_bytes, "x")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_one_flipped_bit_anywhere_is_refused(data: st.DataObject) -> None:
    sealed = bytearray(b"".join(parts()))
    at = data.draw(st.one_of(st.integers(0, 100), st.integers(0, len(sealed) - 1)))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadSeal):
        KEY.unseal(bytes(sealed), "x")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_bytes_cut_off_or_added_are_refused(data: st.DataObject) -> None:
    sealed = b"".join(parts())
    ends = [0, 82, 83, 99, *(83 + number * (CHUNK + 16) for number in range(1, 4))]
    end = data.draw(st.one_of(st.sampled_from(ends), st.integers(0, len(sealed) - 1)))
    with pytest.raises(BadSeal):
        KEY.unseal(sealed[:end], "x")
    with pytest.raises(BadSeal):
        KEY.unseal(sealed + data.draw(st.binary(min_size=1, max_size=40)), "x")


@pytest.mark.parametrize("number", range(5))
def test_a_chunk_or_header_of_another_artifact_is_refused(number: int) -> None:
    mixed = list(parts())
    mixed[number] = other_parts()[number]
    with pytest.raises(BadSeal):
        KEY.unseal(b"".join(mixed), "x")


def test_another_key_is_named_and_opens_nothing() -> None:
    other = ModelKey(bytes(32))
    with pytest.raises(BadSeal, match=f"{KEY.id.hex()}.*{other.id.hex()}"):
        other.unseal(b"".join(parts()), "shard-1.onnx")


def test_the_key_comes_from_a_file_the_environment_or_a_command(tmp_path: Path) -> None:
    text = bytes(range(32)).hex()
    file = tmp_path / "key"
    file.write_text(text + "\n")
    file.chmod(0o600)
    command = f'{sys.executable} -c "print({text!r})"'
    for place in (f"file:{file}", "env:KEY", f"command:{command}"):
        key = ModelKey.of(place, {"KEY": text})
        assert key is not None
        assert key.id == KEY.id
    assert ModelKey.of("") is None


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("key", "file:PATH, env:NAME or command:CMD"),
        ("file:", "openssl rand -hex 32"),
        ("file:MISSING", "MISSING"),
        ("file:OPEN", "chmod 600"),
        ("file:SHORT", "64 hexadecimal digits"),
        ("file:/dev/zero", "no file"),
        ("env:NOT_SET", "not set"),
        ("command:false", "ended with 1"),
        ("command:no-such-command-here", "no-such-command-here"),
        ("command:echo secret-word", "64 hexadecimal digits"),
    ],
)
def test_a_key_that_does_not_do_is_refused_with_a_remedy(
    tmp_path: Path, place: str, remedy: str
) -> None:
    for name, text, mode in (("OPEN", "00" * 32, 0o644), ("SHORT", "00" * 16, 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    if place.startswith("file:") and "/" not in place and place != "file:":
        place = f"file:{tmp_path / place[5:]}"
    with pytest.raises(BadKey, match=remedy) as refused:
        ModelKey.of(place, {})
    assert "secret-word" not in str(refused.value)
