"""Looks at the files of an embedded server, while somebody may delete them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.up.server_store import StoreState, judged, look_at


class Vanishing(type(Path())):  # type: ignore[misc]
    """A folder that is deleted while it is walked."""

    def glob(self, pattern: str) -> Iterator[Path]:
        for path in Path(self).glob(pattern):
            yield path
            shutil.rmtree(self)
            raise FileNotFoundError(self)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("KV_swarm-default", "OBJ_swarm-default", "lanes"):
        (tmp_path / "store" / "jetstream" / "$G" / "streams" / name).mkdir(parents=True)
    return tmp_path / "store"


def test_a_store_that_is_deleted_during_the_look_is_gone_and_the_look_ends(store: Path) -> None:
    known = look_at(store).buckets
    seen = look_at(Vanishing(store))
    assert judged(seen, known, StoreState.FINE) is StoreState.GONE
    assert seen.free > 0, "of the disk that held it"
