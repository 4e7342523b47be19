"""A feature can be removed with its rooms, and all of them at once: nothing else breaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from house import copy_without, names, steps, with_dependents

# Of the core's tests those that take seconds. `.ci/run` runs all of them.
QUICK = [
    "tests/swarm/flow",
    "tests/swarm/requests/test_requester.py",
    "tests/nodes/stage/test_stage_runs.py",
    "tests/nodes/test_nodes_router.py",
    "tests/nodes/test_nodes_status.py",
]


def remove(features: set[str], checks: set[str], into: Path, tests: Sequence[str] = QUICK) -> None:
    """These checks pass in a tree without these features."""
    copy_without(features, into)
    for step in steps(tests, workers=2):
        if step.name in checks:
            said = step.failure(into)
            assert not said, f"{step.name} without {', '.join(sorted(features))}:\n{said}"


@pytest.mark.timeout(900)
def test_all_features_can_be_removed_at_once(tmp_path: Path) -> None:
    remove(set(names()), {"lint", "imports", "types", "demo", "tests"}, tmp_path)


@pytest.mark.weekly
@pytest.mark.timeout(1800)
def test_all_of_the_cores_tests_pass_without_any_feature(tmp_path: Path) -> None:
    remove(set(names()), {"tests"}, tmp_path, ["tests/swarm", "tests/shards", "tests/nodes"])


@pytest.mark.house
@pytest.mark.timeout(900)
@pytest.mark.parametrize("feature", names())
def test_a_feature_can_be_removed_with_its_rooms(feature: str, tmp_path: Path) -> None:
    """What stands on it by an arrow goes with it."""
    remove(with_dependents([feature]), {"lint", "imports", "types"}, tmp_path)


@pytest.mark.weekly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("feature", names())
def test_the_demo_runs_without_a_feature(feature: str, tmp_path: Path) -> None:
    remove(with_dependents([feature]), {"demo"}, tmp_path)
