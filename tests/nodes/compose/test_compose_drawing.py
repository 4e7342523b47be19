"""The graph of a composition is drawn, and of what is none there is nothing to draw."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.commands import said
from support.compositions import RICH, small

from nodes.compose.drawing import INPUTS, OUTPUTS, draw, edges_of, placed
from nodes.compose.model import signature_of
from shards.compose.build import version_of
from shards.compose.check import check
from shards.compose.composition import from_toml
from shards.manifest import read_dir, write_dir
from swarm.model import ModelInfo


@pytest.fixture
def built(tmp_path: Path) -> Path:
    info = ModelInfo.from_manifest(small().manifest.to_json())
    declared = from_toml(RICH)
    asks = [part.name for part in declared.asks()]
    composition = declared.pinned(dict.fromkeys(asks, "1"))
    checked = check(composition, dict.fromkeys(asks, signature_of(info)))
    manifest, files = version_of(
        composition, checked, dict.fromkeys(asks, "small@1"), name="c", version="1", compute_ms=1.0
    )
    write_dir(tmp_path / "built", manifest, files)
    return tmp_path / "built"


def test_each_part_stands_behind_those_that_it_reads() -> None:
    composition = from_toml(RICH)
    places, edges = placed(composition), list(edges_of(composition))
    assert places.keys() == {INPUTS, OUTPUTS, *composition.parts}
    assert len(set(places.values())) == len(places)
    assert all(places[before][0] < places[after][0] for before, after, _ in edges)
    assert ("large", "label", "margin < 4") in edges


def test_inspect_draws_a_composition(built: Path, tmp_path: Path) -> None:
    told = said("model", "inspect", str(built), "--plot", str(tmp_path / "graph.svg"))
    assert told.code == 0, told.stderr
    assert "a composition of 8 parts" in told.stdout
    assert "one by one" not in told.stdout
    drawn = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert all(f">{name}</text>" in drawn for name in from_toml(RICH).parts)


def test_parts_are_drawn_with_the_longest_time_that_nodes_tell(built: Path, tmp_path: Path) -> None:
    manifest, _ = read_dir(built)
    row = {"model": "c", "version": "1", "part": "small"}
    statuses = [
        {"compositions": [row | {"ms": {"p50": 1.0}}, row | {"part": "label"}]},
        {"compositions": [row | {"ms": {"p50": 2.5}}, row | {"version": "2", "ms": {"p50": 9.0}}]},
        {"role": "gateway"},
    ]
    files = {name: built / name for name in manifest.files()}
    assert draw(manifest, files, str(tmp_path / "graph.svg"), statuses)
    drawn = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert ">small: 2.5 ms</text>" in drawn
    assert drawn.count(" ms</text>") == 1


@pytest.mark.parametrize(("file", "why"), [("g.svg", "is none"), ("g.txt", ".svg")])
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, file: str, why: str) -> None:
    result = small()
    write_dir(tmp_path / "small", result.manifest, result.files)
    told = said("model", "inspect", str(tmp_path / "small"), "--plot", str(tmp_path / file))
    assert told.code != 0
    assert why in told.stderr
    assert not (tmp_path / file).exists()
