"""The result of `swarm bench failover` as a table and as lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

MOST_LATE_MS = 20.0  # ms that the requester may be late before its figures are doubted


def table(doc: dict[str, Any]) -> Table:
    """A row for each scenario; times in milliseconds; usual: p50/p99; ack: the longest ack_wait."""
    drawn = Table(
        title=f"failover, {doc['requests_per_s']:g} requests/s, {doc['trials']} trials",
        caption="ms: p50/p99/max over the trials; twice: answers that came once more",
    )
    drawn.add_column("scenario", no_wrap=True)
    for heading in ("gap ms", "slowest ms", ">50 ms", "lost", "refused", "wrong", "twice"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for heading in ("usual", "ack", "targets"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for entry in doc["scenarios"].values():
        if entry["status"] != "ok":
            drawn.add_row(entry["scenario"], entry["status"])
            continue
        drawn.add_row(
            entry["scenario"],
            _three(entry["gap_ms"]),
            _three(entry["slowest_ms"]),
            f"{entry['affected']['p99']:.0f}",
            str(entry["lost"]),
            str(entry["refused"]),
            str(entry["wrong"]),
            str(entry["doubles"]),
            f"{entry['usual_ms']['p50']:.1f}/{entry['usual_ms']['p99']:.1f}",
            f"{max(entry['ack_wait_ms'].values()):.0f}",
            "[green]kept[/]" if entry["passed"] else "[red]missed[/]",
        )
    return drawn


def misses(doc: dict[str, Any]) -> Iterable[str]:
    """A line for each target that was not met, and for each scenario that was not played."""
    for entry in doc["scenarios"].values():
        if entry["status"] != "ok":
            yield f"  {entry['status']}: {entry['scenario']}: {entry['reason']}"
        for verdict in entry.get("targets", ()):
            if not verdict["passed"]:
                yield (
                    f"  missed: {entry['scenario']}: {verdict['target']}: "
                    f"{verdict['measured']}, limit {verdict['limit']}"
                )
        late = entry.get("lag_ms", {}).get("max", 0.0)
        if late > MOST_LATE_MS and not entry["passed"]:
            yield (
                f"  note: {entry['scenario']}: the requester itself was {late:.0f} ms late once: "
                "this machine was busy with something else"
            )


def _three(values: dict[str, float]) -> str:
    return "/".join(f"{values[key]:.0f}" for key in ("p50", "p99", "max"))


def scenario_line(entry: dict[str, Any]) -> str:
    """One line of text for one scenario."""
    if entry["status"] != "ok":
        return f"{entry['scenario']} {entry['status']}: {entry['reason']}"
    return (
        f"{entry['scenario']}: gap {_three(entry['gap_ms'])} ms, slowest "
        f"{_three(entry['slowest_ms'])} ms, lost {entry['lost']}, refused {entry['refused']}, "
        f"wrong {entry['wrong']}, doubles {entry['doubles']}, "
        f"{'kept' if entry['passed'] else 'missed'}"
    )
