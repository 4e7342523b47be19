"""What nobody needs goes from the server, and nothing that somebody needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import manifest

from swarm.errors import NotFound
from swarm.link import Link, jetstream
from swarm.models.artifacts import ObjectStore
from swarm.models.garbage import Collector, unneeded
from swarm.models.registry import Registry
from swarm.subjects import Subjects, api
from swarm.transport.lane import LaneOptions, lane_streams, make_lanes

SUBJECTS = Subjects("test")
DATA = bytes(range(256)) * 2000


@pytest.fixture
def registry(link: Link) -> Registry:
    return Registry(link, SUBJECTS)


async def stored(link: Link) -> int:
    """Messages in the object store."""
    info = await jetstream.call(link, api("STREAM.INFO", f"OBJ_{SUBJECTS.models_bucket}"))
    return int(info["state"]["messages"])


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(), max_size=8),
    st.sets(st.sampled_from("abcdefgh")),
    st.integers(1, 4),
)
def test_no_version_goes_that_is_wanted_or_among_the_last(
    pushed: dict[str, int], wanted: set[str], keep: int
) -> None:
    gone = unneeded(pushed, wanted, keep)
    assert not wanted & set(gone)
    last = sorted(pushed, key=lambda version: pushed[version])[-keep:]
    assert set(gone) == set(pushed) - wanted - set(last)


@pytest.mark.integration
async def test_versions_that_nobody_needs_go_with_their_chunks(
    link: Link, registry: Registry
) -> None:
    for version in "1234567":
        await registry.push(manifest(version), {"a": DATA})
    await registry.promote("m", "2")
    await registry.promote("m", "3")  # 2 is the one before
    await registry.pin("m", "camera", "4")
    for version in "12":
        await make_lanes(link, SUBJECTS, "m", version, 2, LaneOptions())
    collector = Collector(link, SUBJECTS, registry)
    before = await stored(link)
    garbage = await collector.find({("m", "5")}, keep=1)
    assert set(garbage.versions) == {("m", "1"), ("m", "6")}
    assert all(len(DATA) <= size < len(DATA) + 1000 for size in garbage.versions.values())
    assert await stored(link) == before, "looking removes nothing"
    await registry.promote("m", "6")  # behind the collector's back
    removed = await collector.sweep(garbage)
    assert set(removed.versions) == {("m", "1")}
    with pytest.raises(NotFound):
        await registry.manifest("m", "1")
    assert await stored(link) == before * 6 // 7
    assert [len(await lane_streams(link, SUBJECTS, "m", version)) for version in "12"] == [0, 2]
    for version in "234567":
        assert (await registry.fetch("m", version, ["a"]))["a"] == DATA
    await registry.push(manifest("1"), {"a": DATA})  # its name is free again
    assert (await registry.fetch("m", "1", ["a"]))["a"] == DATA


@pytest.mark.integration
async def test_what_a_broken_push_left_goes_once_it_is_old(link: Link, registry: Registry) -> None:
    await registry.push(manifest("1"), {"a": DATA})
    before = await stored(link)
    store = ObjectStore(link, SUBJECTS.models_bucket)
    await store.put("m/9/", {"a": DATA})  # no manifest came
    await link.request(f"$O.{SUBJECTS.models_bucket}.C.BROKEN", DATA, 2.0)  # no document came
    young = await Collector(link, SUBJECTS, registry).find(set())
    assert not young.orphans
    assert not young.lost_chunks
    collector = Collector(link, SUBJECTS, registry, young=0.0)
    garbage = await collector.find(set())
    assert set(garbage.orphans) == {"m/9/a", "m/9/recipe/a"}
    assert garbage.lost_chunks == {"BROKEN": 1}
    await collector.sweep(garbage)
    assert await stored(link) == before
    assert (await registry.fetch("m", "1", ["a"]))["a"] == DATA


@pytest.mark.integration
async def test_a_model_whose_desired_state_cannot_be_read_is_kept_as_a_whole(
    link: Link, registry: Registry
) -> None:
    for version in "123":
        await registry.push(manifest(version), {"a": b"x"})
    await jetstream.kv_put(link, SUBJECTS.config_bucket, "serve.m", b"not JSON")
    garbage = await Collector(link, SUBJECTS, registry).find(set(), keep=1)
    assert not garbage.versions
    assert "no JSON" in garbage.kept["m"]
