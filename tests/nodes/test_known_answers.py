"""A stage's answer to known input is computed beside the event loop, within a bound."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.waiting import GENEROUS, eventually

import nodes.versions.loaded
from nodes.config import NodeConfig
from nodes.versions.loaded import Loaded, learn_known
from shards.specs import TensorSpec
from swarm.model import ModelInfo, Spec, Stage

SPEC = (Spec("x", "FP32", (1,)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))


class SlowStage:
    """A stage whose run lasts until it is told to go on."""

    def __init__(self, has_layers: bool = True) -> None:
        self.runtime = object() if has_layers else None
        self.shard = SimpleNamespace(receives=(TensorSpec("x", "FP32", (1,)),))
        self.compute_ms = 0.0
        self.began, self.go_on = threading.Event(), threading.Event()

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.began.set()
        self.go_on.wait(GENEROUS)
        return {"x": inputs["x"] * 2}


def loaded(stage: Any) -> Loaded:
    return Loaded(INFO, {1: stage}, None, None, 0.0)


async def test_the_event_loop_turns_while_a_stage_learns_its_known_answer() -> None:
    stage = SlowStage()
    version = loaded(stage)
    learning = asyncio.create_task(learn_known(version, NodeConfig("shard-1", "m")))
    await eventually(stage.began.is_set)
    assert not learning.done()
    stage.go_on.set()
    await learning
    known = version.known[1]
    np.testing.assert_array_equal(known.outputs["x"], known.inputs["x"] * 2)


async def test_a_run_that_hangs_leaves_the_version_without_self_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes.versions.loaded, "KNOWN_WITHIN", 0.05)
    stage = SlowStage()
    version = loaded(stage)
    await learn_known(version, NodeConfig("shard-1", "m"))
    assert version.known == {}
    stage.go_on.set()


async def test_a_stage_without_layers_has_no_known_answer() -> None:
    stage = SlowStage(has_layers=False)
    version = loaded(stage)
    await learn_known(version, NodeConfig("shard-1", "m"))
    assert (version.known, stage.began.is_set()) == ({}, False)
