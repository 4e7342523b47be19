"""`swarm bench hostile`: play, print, judge."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.hostile.campaign import HostilePlan, all_findings, play
from bench.hostile.slices import Finding
from bench.report.frame import Benchmark, Progress
from nodes.console import err, out

COUNTS = ("messages", "taken", "refused")


def measure_hostile(plan: HostilePlan, progress: Progress) -> dict[str, Any]:
    """The document. The messages of findings are kept where the plan says so."""
    logging.getLogger("swarm").setLevel(logging.CRITICAL)
    results = play(plan, lambda text: err.print(f"hostile: {text}", highlight=False))
    if plan.keep:
        _keep(all_findings(results), Path(plan.keep))
    return {
        "seed": plan.seed,
        "messages": sum(result.messages for result in results),
        "targets": [
            asdict(result) | {"findings": [finding.as_doc() for finding in result.findings]}
            for result in results
        ],
    }


def misses(document: dict[str, Any]) -> list[str]:
    """A line for each finding: a parser that did not keep its promise."""
    return [
        f"{found['target']}: {found['kind']}: {found['text']} {found['place']} ({found['seen']} "
        f"times; message {found['index']} of seed {document['seed']})"
        for target in document["targets"]
        for found in target["findings"]
    ]


def table(results: list[dict[str, Any]]) -> Table:
    """The results, for people."""
    shown = Table(
        *("parser", "messages", "taken", "refused", "slowest ms", "memory", "findings"),
        title="hostile messages; memory: the most, of what a message may take",
    )
    for result in results:
        shown.add_row(
            *(str(result[key]) for key in ("target", *COUNTS)),
            f"{result['slowest'] * 1e3:.1f}",
            f"{result['most_memory']:.2f}",
            str(len(result["findings"])),
        )
    total = [sum(result[key] for result in results) for key in COUNTS]
    findings = sum(len(result["findings"]) for result in results)
    shown.add_row("all", *map(str, total), "", "", str(findings))
    return shown


def _keep(findings: list[Finding], folder: Path) -> None:
    for number, finding in enumerate(findings):
        place = folder / finding.target
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{finding.kind}-{number}").write_bytes(finding.message)


HOSTILE = Benchmark(
    "hostile",
    measure_hostile,
    lambda document: out.print(table(document["targets"])),
    misses=misses,
)
