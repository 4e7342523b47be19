"""`swarm bench rollout`: its judge sees an answer of two versions, and each missed target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.fleets.rollouts import Load, misses
from bench.fleets.versions import Version, images, make_versions, matches
from shards.runtimes.load import load_stage
from swarm import Result, Status


@pytest.fixture(scope="module")
def versions() -> dict[str, Version]:
    return make_versions()


def through(versions: dict[str, Version], path: str) -> np.ndarray:
    """The first image's logits, with each stage of the version that the path names."""
    tensors = {"image": images()[:1]}
    for stage, version in enumerate(path, 1):
        result = versions[version].split
        runtime = load_stage(result.manifest, stage, result.files.__getitem__)
        tensors = runtime.run(tensors)
        runtime.close()
    return tensors["logits"]


def test_an_answer_whose_stages_are_of_two_versions_is_that_of_none(
    versions: dict[str, Version],
) -> None:
    for path in (
        ("1", "1", "1"),
        ("2", "2", "2"),
        ("1", "2", "2"),
        ("2", "1", "1"),
        ("1", "1", "2"),
    ):
        given = through(versions, path)
        right = {v for v, of in versions.items() if matches(given, of.logits[:1])}
        assert right == ({path[0]} if len(set(path)) == 1 else set()), path


def test_version_2_decides_as_version_1_does_and_version_3_otherwise(
    versions: dict[str, Version],
) -> None:
    first, second, third = (np.argmax(of.logits, axis=1) for of in versions.values())
    assert all(np.isfinite(of.logits).all() for of in versions.values())
    assert np.mean(first == second) > 0.95
    assert np.mean(first == third) < 0.6


class Mesh:
    """Answers with some logits, to the first image, under the name of a version."""

    def __init__(self, logits: np.ndarray, named: str) -> None:
        self.logits, self.named = logits, named
        self.load: Load | None = None

    async def ask(self, *_: Any) -> Result:
        assert self.load is not None
        self.load.stop()
        return Result("r", "digits", self.named, outputs={"logits": self.logits})


@pytest.mark.parametrize(
    ("path", "named", "wrong", "mixed"),
    [
        ("222", "2", 0, 0),
        ("222", "1", 1, 0),
        ("122", "2", 1, 1),
    ],
)
async def test_the_load_tells_wrong_answers_from_mixed_ones(
    versions: dict[str, Version], path: str, named: str, wrong: int, mixed: int
) -> None:
    mesh = Mesh(through(versions, path), named)
    logits = {name: version.logits for name, version in versions.items()}
    load = Load(mesh, 20.0, logits)  # type: ignore[arg-type]
    mesh.load = load
    phase = load.enter("canary")
    await load.run()
    assert (phase.lost, phase.wrong, phase.mixed) == (0, wrong, mixed)
    assert phase.versions == {named: 1}


async def test_a_failure_is_a_lost_request(versions: dict[str, Version]) -> None:
    class Failing(Mesh):
        async def ask(self, *_: Any) -> Result:
            result = await super().ask()
            result.status = Status.UNAVAILABLE
            return result

    mesh = Failing(np.zeros((1, 10), np.float32), "1")
    load = Load(mesh, 20.0, {})  # type: ignore[arg-type]
    mesh.load = load
    phase = load.enter("promote")
    await load.run()
    assert phase.lost == phase.requests > 0


def test_each_missed_target_is_a_sentence() -> None:
    fine = {"lost": 0, "wrong": 0, "mixed": 0, "p99_ratio": 1.9, "back_within_s": 1.5}
    assert misses({"phases": {"canary": fine}}) == []
    for broken in ({"lost": 1}, {"mixed": 1}, {"p99_ratio": 2.1}, {"back_within_s": 2.1}):
        [line] = misses({"phases": {"canary": fine | broken}})
        assert line.startswith("canary: ")
