"""The benchmark of slow links: what it counts, and one short run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.slow_link import unavailable

from bench.fleets.links import LINKS, LinksPlan, Shape, shapes_of
from swarm.errors import InvalidArgument

BOX, FAR_BOX = [0.1, 0.1, 0.3, 0.3], [0.6, 0.6, 0.9, 0.9]


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
