"""The commands of `swarm bench`: their names, their refusals, their exit codes."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.commands import add_commands
from bench.cost.hop import HopPlan
from bench.paced import paced
from bench.report.frame import Benchmark, ChartsMissing, by_turns
from bench.rivals.peers import OURS, entrants, figures_of
from bench.simulations import GOSSIP, SimulationPlan

app = typer.Typer()
add_commands(app)
runner = CliRunner()

MEASURED = (
    "hop",
    "throughput",
    "peers",
    "scale",
    "failover",
    "chaos",
    "overload",
    "memory",
)


def test_the_command_line_loads_no_benchmark_until_one_runs() -> None:
    code = (
        "import sys, nodes.cli.main;"
        "print([name for name, module in sys.modules.items()"
        " if name.startswith(('bench.', 'sim')) and not hasattr(module, '__path__')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = ast.literal_eval(done.stdout)
    assert [each for each in loaded if not each.endswith((".commands", ".feature"))] == []


def test_all_benchmarks_are_commands() -> None:
    shown = runner.invoke(app, ["--help"]).output
    for name in (*MEASURED, "gossip", "routing", "compare", "regression"):
        assert name in shown
        assert runner.invoke(app, [name, "--help"]).exit_code == 0


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


def test_our_own_entrants_run_here_and_need_no_environment_of_the_peers() -> None:
    chosen = entrants(["swarm", "nats_core"], "/nowhere")
    assert [entrant.target for entrant in chosen] == [OURS["swarm"], "nats_core"]
    with pytest.raises(KeyError, match="no contender nowhere"):
        entrants(["nowhere"], "/nowhere")


def test_the_peers_result_holds_the_meshs_ratio_to_raw_jetstream_of_the_same_round() -> None:
    rows = [
        {"workload": "tiny", "contender": name, "round": number, "status": "ok", "p50_ms": p50}
        for number, times in ((1, (2.0, 1.0)), (2, (9.0, 3.0)))
        for name, p50 in zip(("swarm", "nats_jetstream"), times, strict=True)
    ]
    figures = figures_of(rows)
    ratio = figures["tiny/swarm/p50_over_nats_jetstream"]
    assert (ratio["value"], ratio["low"], ratio["high"], ratio["floor"]) == (2.5, 2.0, 3.0, True)
    assert "tiny/nats_jetstream/p50_over_nats_jetstream" not in figures


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


def test_hop_hands_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HopPlan] = []

    def measure(plan: HopPlan, progress: object) -> dict[str, object]:
        seen.append(plan)
        return {}

    monkeypatch.setattr("bench.cost.hop.HOP", Benchmark("hop", measure, pytest.fail))
    arguments = ["hop", "--sizes", "1KiB,8MB", "--rounds", "2", "--json"]
    assert runner.invoke(app, arguments).exit_code == 0
    assert seen == [HopPlan([1024, 8_000_000], 150, 2, "durable")]


def test_contenders_take_turns_and_nobody_always_follows_the_same_one() -> None:
    turns = list(by_turns(3, "ABC"))
    assert "".join(name for _, name in turns) == "ABCBCACAB"
    assert [number for number, _ in turns] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_a_request_is_due_at_its_moment_whatever_became_of_the_earlier_ones() -> None:
    seen = []
    async for number, due in paced(500.0, 4):
        seen.append((number, due))
        if number == 0:
            await asyncio.sleep(0.01)  # longer than all of them take
    numbers, moments = zip(*seen, strict=True)
    assert numbers == (0, 1, 2, 3)
    assert [later - moments[0] for later in moments] == pytest.approx([0.0, 0.002, 0.004, 0.006])
