"""A stage that does not fit is refused before it harms the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from shard_graphs import mlp

from shards.errors import DoesNotFit
from shards.runtimes import memory
from shards.runtimes.load import DeviceChoice, load_stage
from shards.runtimes.memory import check_fits, free_bytes, need_of
from shards.split.split import split


def test_a_machine_tells_how_much_is_free() -> None:
    free = free_bytes()
    assert free is not None
    assert free > 1 << 20


def test_the_limit_of_a_control_group_counts_where_it_is_nearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, use = tmp_path / "max", tmp_path / "current"
    use.write_text("400\n")
    monkeypatch.setattr(memory, "CGROUPS", ((limit, use),))
    limit.write_text("max\n")
    assert free_bytes() != 600
    limit.write_text("1000\n")
    assert free_bytes() == 600
    limit.write_text("100\n")
    assert free_bytes() == 0


def test_too_large_a_stage_is_named_with_need_and_room() -> None:
    check_fits("shard 2", 100 << 20, None)
    check_fits("shard 2", 100, need_of(100))
    with pytest.raises(DoesNotFit, match=r"shard 2 needs 3\.7 GB to load, this machine has 1\.9"):
        check_fits("shard 2", 1_000_000_000, 1_900_000_000)


def test_a_stage_that_does_not_fit_is_not_even_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    result = split(mlp(layers=4).SerializeToString(), name="m", stages=2)
    fetched: list[str] = []

    def fetch(name: str) -> bytes:
        fetched.append(name)
        return result.files[name]

    monkeypatch.setattr("shards.runtimes.load.free_bytes", lambda: 1000)
    for device in ("cpu", "auto"):
        with pytest.raises(DoesNotFit, match="shard 1 of m@1"):
            load_stage(result.manifest, 1, fetch, placement=DeviceChoice(device))
    assert fetched == []
