"""`swarm bench memory`: how memory is read, what it is counted for, and the real mesh."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cost.memory import MEMORY, MemoryPlan
from bench.cost.memory_parts import (
    BUFFERS,
    INTERPRETER,
    KINDS,
    LIBRARIES,
    REST,
    WEIGHTS,
    Mapping,
    Reference,
    Size,
    parse,
    parts,
)
from bench.cost.shared_memory import measure

SMAPS = """\
559d5c000000-559d5c001000 r-xp 00000000 08:01 12 /usr/bin/python3.11
Size:                  4 kB
Rss:                   4 kB
Pss:                   2 kB
Private_Dirty:         0 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                 512 kB
Pss:                 512 kB
"""
PATHS = (
    "",
    "[heap]",
    "/usr/bin/python3.11",
    "/usr/lib/x86_64-linux-gnu/libssl.so.3",
    "/home/robot/.cache/swarm/prepared/abc.bin",
    "/dev/shm/swarm-1 (deleted)",
)


def test_each_mapping_of_the_kernels_text_is_read() -> None:
    assert list(parse(SMAPS.splitlines())) == [
        Mapping("/usr/bin/python3.11", 4096, 2048),
        Mapping("", 512 * 1024, 512 * 1024),
    ]


@pytest.mark.parametrize(
    ("path", "kind"),
    list(zip(PATHS, (REST, REST, INTERPRETER, LIBRARIES, WEIGHTS, BUFFERS), strict=True)),
)
def test_a_mapping_counts_for_what_its_file_is(path: str, kind: str) -> None:
    found = parts([Mapping(path, 4096, 1024)], Reference(0, 0))
    assert found[kind] == Size(4096, 1024)


def test_weights_that_no_file_backs_are_taken_from_private_memory_once() -> None:
    private, mapped = Mapping("", 1000, 1000), Mapping(PATHS[4], 300, 150)
    found = parts([private, mapped], Reference(100, 300), weights=500)
    assert found[INTERPRETER].resident == 100
    assert found[LIBRARIES].resident == 200
    assert found[WEIGHTS] == Size(300 + 200, 150 + 200)
    assert found[REST] == Size(500, 500)


@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 10**9))),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
def test_the_parts_of_a_process_add_up_to_its_memory(
    maps: list[tuple[str, int]], interpreter: int, libraries: int, weights: int
) -> None:
    mappings = [Mapping(path, size, size // 2) for path, size in maps]
    found = parts(mappings, Reference(interpreter, interpreter + libraries), weights)
    assert sum(found.values(), Size()) == Size(
        sum(m.resident for m in mappings), sum(m.proportional for m in mappings)
    )
    assert all(size.resident >= 0 and size.proportional >= 0 for size in found.values())


@pytest.mark.benchmark
@pytest.mark.processes
def test_a_mesh_as_a_user_starts_it_is_measured_process_by_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert MEMORY.run(MemoryPlan("digits", 2, 3), as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    roles = [row["role"] for row in document["processes"]]
    assert sorted(roles) == ["fallback", "server", "shard-1", "shard-2", "up"]
    for row in document["processes"]:
        assert row["resident"] >= row["proportional"] > 5e6
        assert set(row["parts"]) == set(KINDS)
        # Weights are mapped by nodes, and by nobody else.
        is_node = row["role"] not in ("up", "server")
        assert (row["parts"][WEIGHTS]["resident"] > 0) == is_node
    assert document["total"]["resident"] == sum(r["resident"] for r in document["processes"])


@pytest.mark.benchmark
def test_a_model_that_is_no_file_is_refused_with_the_meshs_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert MEMORY.run(MemoryPlan("/nowhere/model.onnx", start_timeout=30), as_json=True) == 1
    assert "no such file" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.processes
def test_the_measurement_times_each_way_and_cleans_up() -> None:
    """Which way is faster is the benchmark's to say: on a busy machine one run says little."""
    (row,) = measure((8 << 20,), rounds=3)
    assert row.keys() >= {"copy", "put_open_check", "claim", "tcp"}
    assert min(row["copy"], row["put_open_check"], row["claim"], row["tcp"]) > 0
    assert not list(Path("/dev/shm").glob(f"swarm-measure-{os.getpid()}-*"))
