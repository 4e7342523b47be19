"""The benchmark of slow links: what it counts, and one short run of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.slow_link import unavailable

from bench.fleets.detector import changed, overlap
from bench.fleets.link_cost import Link, Parts, cameras_a_core, latencies, quickest, rates
from bench.fleets.links import LINKS, LinksPlan, Shape, shapes_of
from swarm.errors import InvalidArgument

MBIT = 125_000.0  # bytes a second
PARTS = Parts(head=0.0011, tail=0.0014, coding=0.0002, jpeg=0.0006, cut=29_000, picture=22_000)
BOX, FAR_BOX = [0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 0.9, 0.9]


def test_a_detection_is_changed_when_it_is_missed_or_made_up() -> None:
    moved = [edge + 0.01 for edge in BOX]
    assert changed([BOX, FAR_BOX], [BOX, FAR_BOX]) == 0
    assert changed([moved], [BOX]) == 0
    assert changed([], [BOX]) == changed([BOX], []) == 1
    assert changed([FAR_BOX], [BOX]) == 2
    assert changed([[3.0]], [[4.0]]) == 2  # another class
    assert overlap(BOX, BOX) == pytest.approx(1.0)


def test_a_thin_link_is_the_edges_and_a_slow_device_the_cores() -> None:
    assert quickest(PARTS, Link(1 * MBIT, 0.01), 4) == "all at the edge"
    assert quickest(PARTS, Link(1000 * MBIT, 0.01), 16) == "jpeg"


@given(st.floats(1, 1000), st.floats(0, 0.1), st.floats(1, 16))
def test_features_larger_than_the_picture_never_arrive_first(
    mbit: float, trip: float, slower: float
) -> None:
    times = latencies(replace(PARTS, cut=1_000_000), Link(mbit * MBIT, trip), slower)
    assert times["jpeg"] < times["split"] or times["all at the edge"] < times["split"]


@given(st.floats(1, 1000), st.floats(1, 16))
def test_no_way_gives_more_frames_than_its_slowest_part(mbit: float, slower: float) -> None:
    link = Link(mbit * MBIT, 0.01)
    found = rates(PARTS, link, slower)
    assert found["jpeg"] <= link.rate / PARTS.picture * 1.001
    assert found["split"] <= link.rate / PARTS.cut * 1.001
    assert found["all at the edge"] <= 1 / (slower * (PARTS.head + PARTS.tail)) * 1.001


def test_a_core_serves_more_cameras_the_more_layers_are_at_the_edge() -> None:
    deep = replace(PARTS, head=PARTS.head + 0.001, tail=PARTS.tail - 0.001)
    assert 1 < cameras_a_core(PARTS) < cameras_a_core(deep)


@pytest.mark.benchmark
@pytest.mark.netns
@pytest.mark.processes
@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_a_short_run_answers_all_over_the_link(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    plan = LinksPlan(codecs=("i8",), alone=4, rated=4, beside=False)
    assert LINKS.run(plan, as_json=True, output=str(file)) == 0
    (link,) = json.loads(file.read_text())["links"]
    jpeg, edge, stages = link["ways"]
    for way in (jpeg, edge, stages):
        assert way["answered"] == way["frames"] == 8
        assert 0 < way["p50_ms"] <= way["p99_ms"]
    assert edge["came_as"].startswith("i8")
    assert edge["bytes_up"] > 10 * jpeg["bytes_down"]
    assert stages["suspected"] == 0


def test_links_are_given_as_rate_round_trip_and_loss() -> None:
    assert shapes_of("20/10/0,5/50/1") == (Shape(20, 10, 0), Shape(5, 50, 1))
    for wrong in ("", "20/10", "20/x/0", "0/10/0", "20/10/100"):
        with pytest.raises(InvalidArgument, match="20/10/0"):
            shapes_of(wrong)
