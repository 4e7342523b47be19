"""The names that programs import, and the cost of importing them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import swarm
from swarm.fleet.bound_names import MOST_OF_USER
from swarm.gossip import LAN

OF_FEATURES = {"Answer", "Taught", "Ticket"}


def test_the_public_surface_is_this_and_no_more() -> None:
    assert sorted({*swarm.__all__} - OF_FEATURES) == [
        "DeadlineExceeded",
        "DecodeError",
        "Hop",
        "Internal",
        "InvalidArgument",
        "Mesh",
        "NotConnected",
        "NotFound",
        "Picture",
        "ResourceExhausted",
        "Result",
        "Status",
        "SwarmError",
        "Unauthenticated",
        "Unavailable",
        "__version__",
        "connect",
        "over",
    ]
    assert all(hasattr(swarm, name) for name in swarm.__all__)


def imported_by(code: str) -> set[str]:
    """The modules in a new process that has run `code`."""
    code = f"import sys, swarm; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_imports_its_errors_and_no_more() -> None:
    """Of 280 modules, at whose import a small device computes for a quarter of a second."""
    found = imported_by("swarm.SwarmError")
    assert {name for name in found if name.startswith("swarm")} == {"swarm", "swarm.errors"}
    assert not {"numpy", "asyncio", "msgpack"} & found


def test_a_client_imports_nothing_that_it_may_never_need() -> None:
    found = imported_by("swarm.connect")
    assert "swarm.mesh" in found
    assert not {"nats", "importlib.metadata", "rich"} & found
    rooms = (
        "swarm.learning",
        "swarm.sites",
        "swarm.gossip",
        "swarm.security.authority",
        "swarm.samehost.teach",
    )
    said = ("of_mesh", "feature")  # what a feature says about itself
    heavy = [name for name in found if name.startswith(rooms) and name not in rooms]
    assert [name for name in heavy if not name.endswith(said)] == []


def test_readers_of_statuses_keep_as_many_nodes_of_a_user_as_gossip_does() -> None:
    """The number stands twice: no client imports gossip."""
    assert LAN.user_nodes == MOST_OF_USER


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    assert "connect" in dir(swarm)
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        swarm.conect  # type: ignore[attr-defined]  # noqa: B018
