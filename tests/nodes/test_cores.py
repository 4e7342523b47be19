"""A node stays on the cores that it was given."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nodes.cores import check_cores, parse_cores
from swarm.errors import InvalidArgument


def test_cores_are_numbers_and_ranges() -> None:
    assert parse_cores("2-3") == (2, 3)
    assert parse_cores("0, 4-5,2") == (0, 2, 4, 5)


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "1-", "99999"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="cores"):
        parse_cores(text)


def test_a_core_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidArgument, match=r"core 7 is not there.*0, 1"):
        check_cores((0, 7), (0, 1))


def test_a_process_and_its_threads_stay_there() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        "import os, threading; from nodes.cores import stay_on\n"
        f"stay_on('{core}')\n"
        "thread = threading.Thread(target=lambda: print(os.sched_getaffinity(0)))\n"
        "thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == str({core}), done.stderr
