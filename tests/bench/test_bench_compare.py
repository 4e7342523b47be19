"""Comparing two results: what counts as worse, and what fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.report.compare import BASELINE, compare, read_document, run_compare
from bench.report.figure import Figure


def document(**figures: Figure) -> dict[str, Any]:
    return {"bench": "hop", "figures": {name: figure.as_doc() for name, figure in figures.items()}}


def ratio(value: float, low: float, high: float) -> Figure:
    return Figure(value, low, high, "x", floor=True)


def test_only_a_ratio_to_a_floor_fails_a_comparison() -> None:
    before = document(slow=Figure(1, 1, 1, "ms"), ratio=ratio(1.0, 0.9, 1.1))
    after = document(slow=Figure(5, 5, 5, "ms"), ratio=ratio(1.05, 0.95, 1.2))
    assert compare(before, after, 1.25)["worse"] == []
    after = document(slow=Figure(1, 1, 1, "ms"), ratio=ratio(1.6, 1.5, 1.8))
    assert compare(before, after, 1.25)["worse"] == ["ratio"]


def test_results_of_two_benchmarks_and_results_without_common_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="not the same"):
        compare(document(a=ratio(1, 1, 1)), {"bench": "scale", "figures": {}})
    with pytest.raises(ValueError, match="no figure in common"):
        compare(document(a=ratio(1, 1, 1)), document(b=ratio(1, 1, 1)))


def test_the_exit_code_says_whether_a_ratio_got_worse_than_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, value in (("a", 1.0), ("b", 1.5)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document(hop=ratio(value, value, value), only=ratio(0, 0, 0))))
        paths.append(str(path))
    assert run_compare(*paths) == 0
    assert run_compare(*paths, fail_above=1.25) == 1
    assert run_compare(*paths, fail_above=2.0) == 0
    assert run_compare(*reversed(paths), fail_above=1.25) == 0
    capsys.readouterr()
    assert run_compare(*paths, fail_above=1.25, as_json=True) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["worse"] == ["hop"]
    assert [item["change"] for item in result["changes"]] == [1.5, None]


def test_a_file_that_is_no_result_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(ValueError, match="cannot read"):
        read_document(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="has no figures"):
        read_document(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read_document(path)
    assert run_compare(str(path), str(path)) == 1


def test_the_stored_baseline_is_a_result_of_hop_with_ratios_to_every_floor() -> None:
    baseline = read_document(BASELINE)
    assert baseline["bench"] == "hop"
    floors = {name.rpartition("_over_")[2] for name, f in baseline["figures"].items() if f["floor"]}
    assert floors == {"nats_core", "nats_jetstream", "inprocess"}
    assert compare(baseline, baseline)["worse"] == []
