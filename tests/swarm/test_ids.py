"""Ids of requests and of nodes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from swarm.errors import InvalidArgument
from swarm.gossip.wire import valid_id
from swarm.ids import nobodys_user, node_id, ulid
from swarm.subjects import parts_of, token


def test_ulids_are_well_formed_unique_and_sort_by_time() -> None:
    made = [ulid() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", value) for value in made)
    assert all(token(value) for value in made)
    assert [value[:10] for value in made] == sorted(value[:10] for value in made)


def test_a_ulid_tells_its_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    # The specification's own example: 2016-07-30T23:54:10.259Z.
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850259 * 1_000_000)
    assert ulid()[:10] == "01ARZ3NDEK"
    earlier = ulid()
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850260 * 1_000_000)
    assert earlier < ulid()


def test_who_has_seen_ids_of_a_process_can_guess_no_other_one_of_it() -> None:
    """Behind the time all characters differ from id to id, each as often as any other one."""
    made = [ulid()[10:] for _ in range(3200)]
    assert len({value[:4] for value in made}) > 3100  # of 2 ** 20
    assert len({value[-4:] for value in made}) > 3100
    for place in range(16):
        found = Counter(value[place] for value in made)
        assert len(found) == 32
        # 100 of each are expected, with a standard deviation of 9.8.
        assert all(40 < times < 170 for times in found.values())
    shared = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in pairwise(made)]
    assert max(shared) < 9


def test_threads_make_other_ulids_than_each_other() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: ulid(), range(4000)))
    assert len(set(made)) == 4000


FORKED = """
import os
from swarm.ids import ulid
read, write = os.pipe()
ulid()
child = os.fork()
os.write(write, ulid().encode()) if child == 0 else os.waitpid(child, 0)
if child == 0:
    os._exit(0)
print(os.read(read, 26).decode(), ulid())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_makes_other_ulids_than_its_parent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True
    )
    child, parent = ran.stdout.split()
    assert child[10:22] != parent[10:22]


@pytest.mark.parametrize(
    "host", ["raspi-4", "a.b.example.org", "büro.örtlich", "", "机器", "x" * 99]
)
def test_a_node_id_is_a_token_whatever_the_host_is_called(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    one, other = node_id(nobodys_user("shard-1")), node_id(nobodys_user("shard-1"))
    assert token(one) == one
    assert one.startswith("shard-1-")
    assert one != other
    assert parts_of(one)[0] == nobodys_user("shard-1")


def test_a_node_of_the_user_with_the_longest_name_can_gossip() -> None:
    assert valid_id(node_id("U" + "A" * 55))
    with pytest.raises(InvalidArgument, match="56 characters"):
        node_id("x" * 57)
