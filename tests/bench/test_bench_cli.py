"""The commands of `swarm bench`: their names, their refusals, their exit codes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.commands import add_commands
from bench.report.frame import Benchmark, ChartsMissing
from bench.simulations import GOSSIP, SimulationPlan

app = typer.Typer()
add_commands(app)
runner = CliRunner()


def test_the_command_line_loads_no_benchmark_until_one_runs() -> None:
    code = (
        "import sys, nodes.cli.main;"
        "print([name for name, module in sys.modules.items()"
        " if name.startswith(('bench.', 'sim')) and not hasattr(module, '__path__')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = ast.literal_eval(done.stdout)
    assert [each for each in loaded if not each.endswith((".commands", ".feature"))] == []


def test_the_benchmarks_of_the_page_are_the_commands() -> None:
    page = Path(__file__).with_name("README.md").read_text()
    table = page.partition("## Run a benchmark")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    names = {name for cell in cells for name in re.findall(r"`([a-z]+)", cell)}
    assert names == typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "arguments",
    [
        ["hop", "--sizes", "7"],
        ["hop", "--delivery", "pigeon"],
        ["throughput", "--models", "nowhere"],
        ["throughput", "--concurrency", "0"],
        ["scale", "--agents", "many"],
        ["throughput", "--models", ""],
    ],
)
def test_a_bad_option_is_refused_before_anything_starts(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_the_document_goes_to_the_file_and_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    made = Benchmark("made", lambda plan, progress: {"figure": plan}, pytest.fail)
    assert made.run(3, as_json=True, output=str(path)) == 0
    document = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == document
    assert (document["v"], document["bench"], document["figure"]) == (1, "made", 3)
    assert document["machine"]["cores"] > 0


def test_a_failed_measurement_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def measure(plan: None, progress: object) -> dict[str, object]:
        raise ExceptionGroup("several", [TimeoutError("too slow")])

    assert Benchmark("slow", measure, pytest.fail).run(None) == 1
    assert "too slow" in capsys.readouterr().err


def test_a_chart_without_matplotlib_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    never = Benchmark("never", lambda *_: pytest.fail("measured"), print, draw=print)
    assert never.run(None, chart="x.png") == 1
    assert "pip install" in str(ChartsMissing())


def test_the_simulations_reports_are_shown_and_a_missed_target_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"scenario": "spread", "nodes": 10, "rounds_max": 13, "target": "12", "met": False}
    report = {"seed": 1, "interval_s": 0.1, "rows": [row], "met": False}
    monkeypatch.setattr("sim.gossip_report.run_report", lambda quick, seed: report)
    assert GOSSIP.run(SimulationPlan()) == 1
    assert "missed: spread" in capsys.readouterr().err
    row["met"] = True
    assert GOSSIP.run(SimulationPlan(), as_json=True) == 0
