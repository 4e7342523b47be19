"""The mesh's key in its file, and the three steps of its change; changes of lists of keys."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from swarm.errors import BadKey
from swarm.security.identity import Identity
from swarm.security.mesh_keys import make_mesh_key, read_mesh_keys, rotate_mesh_key
from swarm.security.trusted_keys import TrustedKeys, trust


def written(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_three_steps_lead_from_one_key_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "mesh.key"
    old = make_mesh_key(path).marks
    steps = []
    for _ in range(3):
        assert rotate_mesh_key(path) == read_mesh_keys(path)
        steps.append(read_mesh_keys(path).accepted)
    new = steps[2][0]
    assert steps == [(old, new), (new, old), (new,)]
    assert new != old
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_is_not_overwritten_by_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "mesh.key"
    key = make_mesh_key(path)
    with pytest.raises(BadKey, match="a key is not overwritten"):
        make_mesh_key(path)
    assert read_mesh_keys(path) == key


def test_a_key_of_any_bytes_is_a_key(tmp_path: Path) -> None:
    for data in (b"a phrase that all know", bytes(range(1, 60)) + b"\n", b"0123456789abcdef\n"):
        assert read_mesh_keys(written(tmp_path / "k", data)).accepted == (data.strip(),)


@pytest.mark.parametrize(
    ("data", "mode", "said"),
    [
        (b"short", 0o600, "holds 5 bytes; 16 to 64 are needed"),
        (b"x" * 65, 0o600, "holds 65 bytes"),
        (b"0123456789abcdef", 0o644, "others may read it: `chmod 600"),
        (b"0123456789abcdef\n0123456789abcdef next\n", 0o600, "one key twice"),
    ],
)
def test_a_file_that_does_not_do_is_named_with_the_remedy(
    tmp_path: Path, data: bytes, mode: int, said: str
) -> None:
    path = written(tmp_path / "mesh.key", data, mode)
    with pytest.raises(BadKey, match=said) as refused:
        read_mesh_keys(path)
    assert str(path) in str(refused.value)


def _trust(file: Path) -> None:
    trust(Identity.make().public, "somebody", file)


def test_keys_that_several_processes_trust_at_once_are_all_in_the_list(tmp_path: Path) -> None:
    file = tmp_path / "trusted"
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_trust, [file] * 24))
    assert len(TrustedKeys([file]).listed()) == 24
