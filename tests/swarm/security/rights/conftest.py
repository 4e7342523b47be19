"""One server in each mode for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rights_users import issued
from shared_server import SharedServer

from swarm.security.authority.authority import Authority
from swarm.security.authority.server_conf import operator_conf, plain_conf

Secured = tuple[SharedServer, Authority, bool]


@pytest.fixture(scope="module", params=["operator mode", "plain"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = issued(folder / "auth")
    plain = request.param == "plain"
    conf = plain_conf(authority, 0.0) if plain else operator_conf(authority, str(folder / "jwt"))
    server = SharedServer(conf)
    server.start_now()
    yield server, authority, plain
    server.stop_now()


@pytest.fixture
def mesh(secured: Secured, used: list[SharedServer]) -> Secured:
    """The server, who its users are, and whether its configuration is a plain one. What another
    test stored is still there."""
    used.append(secured[0])
    return secured
