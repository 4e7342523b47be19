"""What tests of benchmarks share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_logs_of_a_benchmark_end_with_it() -> Iterator[None]:
    """A benchmark that runs in this process makes the logs quiet, for its own process."""
    log = logging.getLogger("swarm")
    level = log.level
    yield
    log.setLevel(level)
