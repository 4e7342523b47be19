"""For all tests: artifacts and keys stand in folders of this run; the order may be shuffled."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Generator, Iterator
from typing import TypeVar

import pytest
from hypothesis import settings
from support.leftovers import nothing_left_behind

from nodes.cli.bench import reach_benchmarks

# gRPC's own work between fork and exec fails in children that ask to end with their parent, as
# servers and nodes do.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Each process that a test starts would compile all that it imports: more than half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes is a measurement of the machine, and no promise.
settings.register_profile("swarm", deadline=None)
settings.load_profile("swarm")


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="shuffle the files, and the tests of each file"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffled, a file's tests stay together: they share what they start."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    drawn = random.Random(seed)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(str(item.path), []).append(item)
    order = list(files.values())
    drawn.shuffle(order)
    for of_file in order:
        drawn.shuffle(of_file)
    items[:] = [item for of_file in order for item in of_file]


def _none_skipped(report: Report) -> Report:
    """With TESTS_SKIP_NOTHING in the environment, a test that is skipped has failed."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TESTS_SKIP_NOTHING"):
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped here: {report.longreprtext}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _none_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _none_skipped((yield))


@pytest.fixture(autouse=True)
def levels_of_logs_end_with_a_test() -> Iterator[None]:
    """What makes logs quiet means its own process; the next test of this one reads them."""
    logs = [logging.getLogger(name) for name in (None, "swarm", "shards", "nodes")]
    levels = [log.level for log in logs]
    yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)


@pytest.fixture(autouse=True, scope="session")
def folders_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment that the tests' processes inherit. A run that leaves anything fails."""
    tmp_path_factory.getbasetemp()  # pytest's own folders stay where they are
    with nothing_left_behind(), pytest.MonkeyPatch.context() as environment:
        reach_benchmarks()
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        environment.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield
