"""Versions that compositions ask stay in service as long as the compositions that ask them."""

from __future__ import annotations

from typing import Any

import pytest
from manifests import manifest

from swarm.errors import InvalidArgument, NotFound
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.models.asked_versions import MOST_DEPTH
from swarm.models.garbage import Collector
from swarm.models.idle_lanes import needed_versions
from swarm.models.registry import Registry
from swarm.routing import BadDesiredState, parse_desired
from swarm.subjects import Subjects

SUBJECTS = Subjects("test")


def asks(*names: str, version: str = "1", model: str = "cascade") -> bytes:
    """The manifest of a composition that asks these versions."""
    parts = {f"part-{number}": name for number, name in enumerate(names)}
    return manifest(version, model, composition={"parts": len(parts), "models": parts})


@pytest.fixture
async def registry(link: Link) -> Registry:
    """Versions 1 to 3 of the models `small` and `large`; 1 serves."""
    registry = Registry(link, SUBJECTS)
    for model in ("small", "large"):
        for version in "123":
            await registry.push(manifest(version, model), {})
    return registry


async def asked(registry: Registry, model: str) -> dict[str, tuple[str, ...]]:
    present = await registry.in_force(model)
    assert present is not None
    return dict(present.state.asked)


@pytest.mark.integration
async def test_a_version_that_a_serving_composition_asks_is_served_and_keeps_its_lanes(
    link: Link, registry: Registry
) -> None:
    await registry.push(asks("small@1", "large@2"), {})
    for version in "23":
        await registry.promote("small", version)
    assert await asked(registry, "small") == {"cascade": ("1",)}
    assert await asked(registry, "large") == {"cascade": ("2",)}
    present = await registry.in_force("small")
    assert present is not None
    assert present.state.versions == ("3", "1")
    assert present.state.is_the_same_for_all, "who names no version is sent to the promoted one"
    assert await needed_versions(registry, "small") == {"1", "2", "3"}
    garbage = await Collector(link, SUBJECTS, registry, young=0.0).find(set(), keep=0)
    assert ("small", "1") not in garbage.versions
    assert ("large", "3") in garbage.versions


@pytest.mark.integration
async def test_promote_and_rollback_keep_what_the_version_before_asks_and_no_older_one(
    registry: Registry,
) -> None:
    for version in "123":
        await registry.push(asks(f"small@{version}", version=version), {})
    assert await asked(registry, "small") == {"cascade": ("1",)}, "the first one serves at once"
    await registry.promote("cascade", "2")
    assert await asked(registry, "small") == {"cascade": ("1", "2")}
    await registry.promote("cascade", "3")
    assert await asked(registry, "small") == {"cascade": ("2", "3")}
    await registry.rollback("cascade")
    assert await asked(registry, "small") == {"cascade": ("2", "3")}
    await registry.push(asks("large@1", version="4"), {})
    for _ in range(2):
        await registry.promote("cascade", "4")
        await registry.promote("cascade", "1")
    await registry.pin("cascade", "camera", "2")
    assert await asked(registry, "small") == {"cascade": ("1", "2")}
    assert await asked(registry, "large") == {"cascade": ("1",)}


@pytest.mark.integration
async def test_a_version_under_rollout_has_what_it_asks_and_an_ended_one_does_not(
    registry: Registry,
) -> None:
    pytest.importorskip("swarm.rollout")
    from swarm.rollout import plan_of

    for version in "12":
        await registry.push(asks(f"small@{version}", version=version), {})
    plan = plan_of("p", "2", "10%")
    await registry.change("cascade", lambda document: document | {"rollout": plan.document()})
    assert await asked(registry, "small") == {"cascade": ("1", "2")}
    await registry.rollback("cascade")
    assert await asked(registry, "small") == {"cascade": ("1",)}


@pytest.mark.integration
async def test_a_desired_state_as_a_whole_says_nothing_of_who_asks(registry: Registry) -> None:
    await registry.push(asks("small@1"), {})
    serve = [{"version": "2", "share": 100}]
    await registry.desire("small", {"serve": serve, "asked": {"nobody": ["3"]}})
    assert await asked(registry, "small") == {"cascade": ("1",)}


@pytest.mark.integration
async def test_a_composition_of_compositions_keeps_all_that_is_asked(registry: Registry) -> None:
    await registry.push(asks("small@1", model="inner"), {})
    await registry.push(asks("small@2", model="inner", version="2"), {})
    await registry.push(asks("inner@1", "large@1", model="outer"), {})
    await registry.promote("inner", "2")
    await registry.push(asks("small@3", model="inner", version="3"), {})
    await registry.promote("inner", "3")
    assert await asked(registry, "inner") == {"outer": ("1",)}
    assert await asked(registry, "small") == {"inner": ("1", "2", "3")}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["small@4", "nobody@1"])
async def test_a_composition_of_a_version_that_is_not_there_is_refused_at_push(
    registry: Registry, name: str
) -> None:
    with pytest.raises(NotFound, match=f"cascade@1 asks {name}"):
        await registry.push(asks("large@1", name), {})
    with pytest.raises(NotFound):
        await registry.manifest("cascade", "1")
    assert await asked(registry, "large") == {}


@pytest.mark.integration
async def test_a_composition_whose_part_is_gone_is_not_promoted(registry: Registry) -> None:
    await registry.push(asks("large@1"), {})
    await registry.push(asks("large@1", "small@3", version="2"), {})
    await registry.forget("small", "3")
    with pytest.raises(NotFound, match="small"):
        await registry.promote("cascade", "2")
    assert await registry.serving("cascade") == "1"


@pytest.mark.integration
async def test_compositions_stand_behind_each_other_to_a_bounded_depth(
    registry: Registry,
) -> None:
    below = "small@1"
    for number in range(1, MOST_DEPTH):
        await registry.push(asks(below, "large@1", model=f"level-{number}"), {})
        below = f"level-{number}@1"
    with pytest.raises(InvalidArgument, match=f"asks level-1@1 asks .*at most {MOST_DEPTH}"):
        await registry.push(asks("large@1", below, model="top"), {})


@pytest.mark.integration
async def test_a_circle_is_refused_whatever_closes_it(registry: Registry) -> None:
    await registry.push(manifest("1", "b"), {})
    await registry.push(asks("b@1", model="a"), {})
    await registry.forget("b", "1")  # else it could never ask what asks it
    with pytest.raises((InvalidArgument, NotFound), match="b@1 asks a@1 asks b@1"):
        await registry.push(asks("a@1", model="b"), {})


@pytest.mark.parametrize(
    "asked",
    [
        [],
        {"cascade": "1"},
        {"cascade": [1]},
        {"cascade": ["1.2"]},
        {"": ["1"]},
        {"cascade": [str(n) for n in range(65)]},
        {f"m{n}": ["1"] for n in range(65)},
    ],
)
def test_what_cannot_be_asked_is_refused(asked: Any) -> None:
    document = {"model": "m", "serve": [{"version": "1", "share": 100}], "asked": asked}
    with pytest.raises(BadDesiredState, match="asked"):
        parse_desired(document)


@pytest.mark.parametrize(
    "models", [None, [], {"a": 3}, {"a": "small"}, {"a": "s.x@1"}, {"a": "@1"}]
)
def test_a_manifest_that_asks_for_what_has_no_name_is_no_manifest(models: Any) -> None:
    data = manifest("1", composition={"parts": 1, "models": models})
    with pytest.raises(InvalidArgument):
        ModelInfo.from_manifest(data)
