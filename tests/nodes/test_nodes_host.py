"""`swarm doctor --host` says which settings of a machine cost time, and how to change each."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator

import pytest
from support.commands import said


@pytest.fixture
def few_files() -> Iterator[None]:
    """A shell that lets a process open 512 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def findings() -> tuple[int, dict[str, dict[str, object]]]:
    done = said("doctor", "--host", "--json")
    return done.code, {each["name"]: each for each in json.loads(done.stdout)}


def test_a_machine_is_well_unless_something_is_found() -> None:
    code, found = findings()
    assert code == int(any(each["ok"] is False for each in found.values()))
    assert {"cores", "open files", "shared memory", "swap", "clock source"} <= set(found)
    assert all(each["why"] and each["remedy"] for each in found.values())


@pytest.mark.usefixtures("few_files")
def test_too_few_open_files_are_found_with_the_line_that_mends_it() -> None:
    code, found = findings()
    assert code == 1
    assert found["open files"]["ok"] is False
    assert found["open files"]["value"] == "512"
    assert "ulimit -n" in said("doctor", "--host").stdout
