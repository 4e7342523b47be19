"""For all tests: artifacts and keys are kept in folders of this run, not in the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes is a measurement of the machine, and no promise.
settings.register_profile("swarm", deadline=None)
settings.load_profile("swarm")


@pytest.fixture(autouse=True, scope="session")
def folders_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment that the tests' processes inherit."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield
