"""Prepared models that a vault keeps: nothing of them is on a disk in plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shards.errors import DoesNotFit
from shards.runtimes.load import load_lighter, load_stage
from shards.runtimes.synthetic import random_feeds
from shards.split.split import split
from shards.zoo import digits_lite_model, digits_model

SPLIT = split(digits_model(), name="digits", stages=2, profile=False, lighter=digits_lite_model())


class Vault:
    """Blocks in memory."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}

    def kept(self, key: str, make: Callable[[], Sequence[bytes]]) -> memoryview:
        if key not in self.blocks:
            self.blocks[key] = b"".join(make())
        return memoryview(self.blocks[key])


class Files:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str) -> bytes:
        self.asked.append(name)
        return SPLIT.files[name]


@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_from_a_vault_computes_what_the_stage_in_memory_computes(stage: int) -> None:
    vault, files = Vault(), Files()
    in_memory = load_stage(SPLIT.manifest, stage, SPLIT.files.__getitem__)
    feeds = random_feeds(in_memory.shard.receives, seed=5)
    for _ in range(2):  # prepared now, and found prepared
        kept = load_stage(SPLIT.manifest, stage, files, vault=vault)
        for name, array in in_memory.run(feeds).items():
            np.testing.assert_array_equal(kept.run(feeds)[name], array)
    assert len(files.asked) == len(vault.blocks) == 1


def test_a_lighter_model_is_kept_too() -> None:
    vault, files = Vault(), Files()
    for _ in range(2):
        assert load_lighter(SPLIT.manifest, files, vault=vault) is not None
    assert len(files.asked) == len(vault.blocks) == 1


@pytest.mark.parametrize("left", [0, 3, 100, -1])
def test_a_block_that_cannot_be_read_costs_no_stage(
    left: int, caplog: pytest.LogCaptureFixture
) -> None:
    vault, files = Vault(), Files()
    feeds = random_feeds(SPLIT.manifest.shard(2).receives)
    right = load_stage(SPLIT.manifest, 2, files, vault=vault).run(feeds)
    vault.blocks = {key: block[:left] for key, block in vault.blocks.items()}
    stage = load_stage(SPLIT.manifest, 2, files, vault=vault)
    np.testing.assert_array_equal(stage.run(feeds)["logits"], right["logits"])
    assert "no prepared ones can be used" in caplog.text


def test_weights_from_a_vault_that_give_another_result_are_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vault, files = Vault(), Files()
    feeds = random_feeds(SPLIT.manifest.shard(2).receives)
    right = load_stage(SPLIT.manifest, 2, files, vault=vault).run(feeds)
    ((key, block),) = vault.blocks.items()
    middle = len(block) // 2
    vault.blocks[key] = block[:middle] + bytes(1024) + block[middle + 1024 :]
    stage = load_stage(SPLIT.manifest, 2, files, vault=vault)
    np.testing.assert_array_equal(stage.run(feeds)["logits"], right["logits"])
    assert "is off by" in caplog.text


def test_what_a_vault_keeps_needs_its_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = Vault()
    load_stage(SPLIT.manifest, 1, SPLIT.files.__getitem__, vault=vault)
    monkeypatch.setattr("shards.runtimes.load.free_bytes", lambda: 1 << 20)
    with pytest.raises(DoesNotFit):
        load_stage(SPLIT.manifest, 1, SPLIT.files.__getitem__, vault=vault)
