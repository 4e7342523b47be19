"""An exporter knows what its credentials do not let it read, and tells that."""

from __future__ import annotations

import pytest
from test_metrics_families import samples

from nodes.watch.commands.exporter import sees
from nodes.watch.metrics.fleet import of_fleet
from swarm.fleet.picture import FleetPicture
from swarm.link import Link, LinkOptions
from swarm.link.grants import Allowed, Grants
from swarm.security.rights.permissions import permissions_of
from swarm.subjects import Subjects

SUBJECTS = Subjects("default")


@pytest.mark.parametrize(
    ("lacks", "what"),
    [
        ("", ""),
        ("$JS.API.STREAM.INFO.KV_", "models"),
        (".models.*.*", "manifests"),
        ("observed", "clients"),
    ],
)
async def test_credentials_that_are_older_than_a_right_are_told(lacks: str, what: str) -> None:
    now = permissions_of("dashboard", mesh="default", models=[])
    publish, subscribe = (
        tuple(subject for subject in subjects if not lacks or lacks not in subject)
        for subjects in (now.publish, now.subscribe)
    )
    link = Link(LinkOptions(servers=("nats://127.0.0.1:1",)))
    link.grants = Grants("d", Allowed(publish), Allowed(subscribe))
    may = sees(link, SUBJECTS)
    assert [name for name, is_so in may.items() if not is_so] == ([what] if what else [])
    found = samples(of_fleet(FleetPicture(), True, 1.0, sees=may))["swarm_exporter_sees"]
    assert {labels["what"] for labels, value in found if not value} == ({what} - {""})
