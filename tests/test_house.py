"""A feature can be removed with its rooms, and all of them at once: nothing else breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from house import copy_without, held_by, names, steps, with_dependents

# Of the core's tests those that take seconds. `.ci/run` runs all of them.
QUICK = [
    "tests/swarm/flow",
    "tests/swarm/requests/test_requester.py",
    "tests/nodes/stage",
    "tests/nodes/test_nodes_router.py",
    "tests/nodes/test_nodes_status.py",
]


def remove(features: set[str], request: pytest.FixtureRequest, into: Path) -> None:
    """Check a tree without these features. Where `pyproject.toml` still lists what holds them
    ("unsorted"), that is expected to fail, and it is a fault if it does not."""
    if held := held_by(features):
        request.applymarker(pytest.mark.xfail(reason=", ".join(held), strict=True))
    copy_without(features, into)
    for step in steps(QUICK, workers=2):
        said = step.failure(into)
        assert not said, f"{step.name} without {', '.join(sorted(features))}:\n{said}"


@pytest.mark.timeout(900)
def test_all_features_can_be_removed_at_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    remove(set(names()), request, tmp_path)


@pytest.mark.house
@pytest.mark.timeout(900)
@pytest.mark.parametrize("feature", names())
def test_a_feature_can_be_removed_with_its_rooms(
    feature: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    remove(with_dependents([feature]), request, tmp_path)
