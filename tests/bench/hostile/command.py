"""`swarm bench hostile`: play, print, judge."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.hostile.campaign import HostilePlan, all_findings, play
from bench.hostile.slices import Finding, SliceResult
from bench.report.machine import machine
from nodes.console import err, out, print_json

FORMAT = 1


def run_hostile(plan: HostilePlan, keep: str, as_json: bool = False) -> int:
    """The command; exit code 1 where a parser did not keep its promise. keep: a folder for the
    messages of the findings, or ''."""
    logging.getLogger("swarm").setLevel(logging.CRITICAL)
    results = play(plan, lambda text: err.print(f"hostile: {text}", highlight=False))
    findings = all_findings(results)
    if keep:
        _keep(findings, Path(keep))
    if as_json:
        print_json(document(plan, results))
    else:
        out.print(table(results))
    for finding in findings:
        err.print(
            f"hostile: {finding.target}: {finding.kind}: {finding.text} {finding.place} "
            f"({finding.seen} times; message {finding.index} of seed {plan.seed}, "
            f"{len(finding.message)} bytes)",
            markup=False,
            highlight=False,
        )
    return int(bool(findings))


def document(plan: HostilePlan, results: list[SliceResult]) -> dict[str, Any]:
    """The result, for machines."""
    return {
        "v": FORMAT,
        "bench": "hostile",
        "seed": plan.seed,
        "messages": sum(result.messages for result in results),
        "passed": not all_findings(results),
        "targets": [
            asdict(result) | {"findings": [finding.as_doc() for finding in result.findings]}
            for result in results
        ],
        "machine": machine(),
    }


def table(results: list[SliceResult]) -> Table:
    """The results, for people."""
    shown = Table(
        *("parser", "messages", "taken", "refused", "slowest ms", "memory", "findings"),
        title="hostile messages; memory: the most, of what a message may take",
    )
    for result in results:
        shown.add_row(
            result.target,
            str(result.messages),
            str(result.taken),
            str(result.refused),
            f"{result.slowest * 1e3:.1f}",
            f"{result.most_memory:.2f}",
            str(len(result.findings)),
        )
    total = [sum(getattr(r, key) for r in results) for key in ("messages", "taken", "refused")]
    shown.add_row("all", *map(str, total), "", "", str(len(all_findings(results))))
    return shown


def _keep(findings: list[Finding], folder: Path) -> None:
    for number, finding in enumerate(findings):
        place = folder / finding.target
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{finding.kind}-{number}").write_bytes(finding.message)
