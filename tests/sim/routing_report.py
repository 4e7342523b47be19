"""The comparison of all policies in all scenarios: rows for `--json`, and a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Any

from sim import routing_pipeline as simulation
from sim.routing_pipeline import Outcome, Simulation, clairvoyant
from sim.routing_scenarios import (
    BUDGET_S,
    NODES,
    REQUESTERS,
    SERVICE_S,
    Scenario,
    scenarios,
)

REFERENCE = "clairvoyant"
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "pull": ("pull", {}),
    "pull, 2 credits": ("pull", {"credits": 2}),
    "pull, fast first": ("pull", {"fast_first": True}),
    "round-robin": ("round-robin", {}),
    "least-connections": ("least-connections", {}),
    "power-of-two": ("power-of-two", {}),
    "weighted-least-pending": ("weighted-least-pending", {}),
    "consistent-hash": ("consistent-hash", {}),
    "token-bucket": ("token-bucket", {}),
    "adaptive": ("adaptive", {"p99_bound_s": BUDGET_S}),
}
"""Label -> policy and the knobs of policy or lane."""


def run_report(
    quick: bool = True, *, seed: int = 1, contenders: Sequence[str] | None = None
) -> dict[str, Any]:
    """Simulate every policy in every scenario; JSON-able, the same for the same seed.

    quick: 6000 requests per scenario (some seconds in all) instead of 60000. contenders: labels of
    CONTENDERS; all by default. Rows hold scenario, policy, requests, p50_ms, p99_ms, p999_ms,
    goodput (fraction answered within the budget), yields (safety yields of adaptive); `summary`
    holds per policy the p99 over the reference's, as geometric mean and as worst of all scenarios.
    Raises KeyError for an unknown label.
    """
    count = 6_000 if quick else 60_000
    labels = list(CONTENDERS) if contenders is None else list(contenders)
    rows: list[dict[str, Any]] = []
    for scenario in scenarios(count, seed):
        rows.append(_row(scenario, REFERENCE, clairvoyant(scenario)))
        for label in labels:
            name, knobs = CONTENDERS[label]
            rows.append(_row(scenario, label, Simulation(scenario, name, seed, **knobs).run()))
    return {
        "seed": seed,
        "requests": count,
        "assumptions": {
            "nodes": NODES,
            "requesters": REQUESTERS,
            "service_ms": SERVICE_S * 1e3,
            "budget_ms": BUDGET_S * 1e3,
            "hop_ms": simulation.HOP_S * 1e3,
            "pull_ms": simulation.PULL_S * 1e3,
            "gossip_age_ms": (simulation.SPREAD_S + simulation.GOSSIP_S / 2) * 1e3,
            "ack_wait_ms": simulation.ACK_WAIT_S * 1e3,
            "detect_ms": simulation.DETECT_S * 1e3,
        },
        "rows": rows,
        "summary": _summary(rows, labels),
    }


def render_markdown(report: dict[str, Any]) -> str:
    """The report as a Markdown table: a row per policy, a column per scenario, and the verdict."""
    rows = report["rows"]
    names = list(dict.fromkeys(row["scenario"] for row in rows))
    cells = {(row["policy"], row["scenario"]): row for row in rows}
    summary = {entry["policy"]: entry for entry in report["summary"]}
    head = ["policy", *names, "p99 / reference: mean (worst)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for label in dict.fromkeys(row["policy"] for row in rows):
        line = [label, *(_cell(cells[label, name]) for name in names)]
        entry = summary.get(label)
        line.append(f"{entry['p99_mean']:.2f} ({entry['p99_worst']:.1f})" if entry else "1")
        lines.append("| " + " | ".join(line) + " |")
    given = report["assumptions"]
    lines += [
        "",
        f"Cells: p50 / p99 / p99.9 in ms, and answers within the {given['budget_ms']:g} ms budget. "
        f"{report['requests']} requests per cell, seed {report['seed']}, {given['nodes']} nodes, "
        f"{given['requesters']} requesters, {given['service_ms']:g} ms of compute, gossip "
        f"{given['gossip_age_ms']:g} ms old on average.",
    ]
    return "\n".join(lines) + "\n"


def _row(scenario: Scenario, label: str, outcome: Outcome) -> dict[str, Any]:
    ranked = sorted(outcome.latencies)

    def at(q: float) -> float:
        return round(ranked[min(len(ranked) - 1, int(q * len(ranked)))] * 1e3, 3)

    return {
        "scenario": scenario.name,
        "policy": label,
        "requests": len(ranked),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "p999_ms": at(0.999),
        "goodput": round(outcome.goodput(BUDGET_S), 5),
        "yields": outcome.yields,
    }


def _summary(rows: list[dict[str, Any]], labels: list[str]) -> list[dict[str, Any]]:
    best = {row["scenario"]: row["p99_ms"] for row in rows if row["policy"] == REFERENCE}
    summary = []
    for label in labels:
        own = [row for row in rows if row["policy"] == label]
        ratios = [row["p99_ms"] / best[row["scenario"]] for row in own]
        summary.append(
            {
                "policy": label,
                "p99_mean": round(exp(sum(map(log, ratios)) / len(ratios)), 3),
                "p99_worst": round(max(ratios), 3),
                "goodput_worst": min(row["goodput"] for row in own),
            }
        )
    return summary


def _cell(row: dict[str, Any]) -> str:
    times = f"{row['p50_ms']:.1f} / {row['p99_ms']:.1f} / {row['p999_ms']:.1f}"
    return f"{times} · {row['goodput']:.1%}"
