"""Lanes of versions that serve no longer are given back; lanes that somebody needs stay."""

from __future__ import annotations

import pytest
from manifests import manifest

from swarm.link import Link, jetstream
from swarm.models.idle_lanes import give_back_lanes
from swarm.models.registry import Registry
from swarm.subjects import Subjects, api
from swarm.transport.lane import LaneOptions, lanes_of_model, make_lanes

SUBJECTS = Subjects("test")
OPTIONS = LaneOptions(depth=8, stage_bytes=(1 << 20, 1 << 20))

pytestmark = pytest.mark.integration


@pytest.fixture
async def registry(link: Link) -> Registry:
    """Versions 1 to 5 of a model with lanes; 3 serves, and 2 did before."""
    registry = Registry(link, SUBJECTS)
    for version in "12345":
        await registry.push(manifest(version), {})
        await make_lanes(link, SUBJECTS, "m", version, 2, OPTIONS)
    for version in "23":
        await registry.promote("m", version)
    return registry


async def kept(link: Link, mesh: Subjects = SUBJECTS) -> str:
    """The versions that have their lanes."""
    found = await lanes_of_model(link, mesh, "m")
    assert all(len(streams) == 2 for streams in found.values())
    return "".join(sorted(found))


async def give_back(link: Link, registry: Registry, *, keep_newer: bool = False) -> set[str]:
    gone = await give_back_lanes(link, SUBJECTS, registry, "m", keep_newer=keep_newer)
    return {name.split("=")[3] for name in gone}


async def test_the_version_that_serves_and_the_one_before_keep_their_lanes(
    link: Link, registry: Registry
) -> None:
    reserved = (await jetstream.call(link, "$JS.API.INFO"))["reserved_memory"]
    assert await give_back(link, registry) == {"1", "4", "5"}
    assert await kept(link) == "23"
    now = (await jetstream.call(link, "$JS.API.INFO"))["reserved_memory"]
    assert reserved - now == 3 * 2 << 20
    assert await give_back(link, registry) == set()


async def test_versions_that_are_pinned_keep_their_lanes(link: Link, registry: Registry) -> None:
    await registry.pin("m", "camera", "1")
    assert await give_back(link, registry) == {"4", "5"}


async def test_what_an_operator_has_pushed_and_not_promoted_yet_stays_where_nodes_may_not_make_it(
    link: Link, registry: Registry
) -> None:
    assert await give_back(link, registry, keep_newer=True) == {"1"}
    assert await kept(link) == "2345"


async def test_a_lane_with_a_message_stays_and_so_do_the_others_of_its_version(
    link: Link, registry: Registry
) -> None:
    await link.request(SUBJECTS.features("m", "4", 2), b"waits", from_server=True)
    assert await give_back(link, registry) == {"1", "5"}
    await jetstream.call(link, api("STREAM.PURGE", SUBJECTS.stream("m", "4", 2)))
    assert await give_back(link, registry) == {"4"}


async def test_a_lane_at_which_a_node_pulls_stays(link: Link, registry: Registry) -> None:
    subject = api("CONSUMER.MSG.NEXT", SUBJECTS.stream("m", "5", 2), SUBJECTS.consumer("m", 2))
    pull = b'{"batch":1,"expires":60000000000,"group":"g","priority":2}'
    inbox = f"{link.server_inbox}.pulled"
    link.subscribe(inbox, lambda message: None)
    link.publish(subject, pull, inbox)
    await link.flush()
    assert await give_back(link, registry) == {"1", "4"}


async def test_nothing_goes_while_nobody_can_say_what_serves(
    link: Link, registry: Registry
) -> None:
    key = f"$KV.{SUBJECTS.config_bucket}.serve.m"
    await link.request(key, b"no desired state", from_server=True)
    assert await give_back(link, registry) == set()
    await jetstream.call(link, api("STREAM.DELETE", f"KV_{SUBJECTS.config_bucket}"))
    assert await give_back(link, registry) == set()
    assert await kept(link) == "12345"


async def test_lanes_of_another_mesh_and_streams_of_other_names_are_nobodys_business(
    link: Link, registry: Registry
) -> None:
    other = Subjects("other")
    await make_lanes(link, other, "m", "1", 2, OPTIONS)
    copies = {"name": "COPIES", "subjects": [SUBJECTS.features_of("n", "1")], "storage": "memory"}
    await jetstream.ensure_stream(link, copies)
    await give_back(link, registry)
    assert await kept(link, other) == "1"
    assert await jetstream.stream_exists(link, "COPIES")
