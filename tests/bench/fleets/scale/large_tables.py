"""The large fleet's document as a table, and the targets that it misses."""

from __future__ import annotations

from typing import Any

MOST_SERVER_CPU = 25.0  # percent of a core, idle
MOST_LATENCY_RATIO = 1.1
MOST_MEMORY_MB = 15.0  # more than a node of five has
# A takeover is a few rounds of gossip, which begin at any moment: medians of few trials differ by
# as much as a round.
ROUND_MS = 200.0


def misses(document: dict[str, Any]) -> list[str]:
    """A sentence for each target that is missed."""
    idle, requests = document["idle"], document["requests"]
    takeovers, memory = document["takeovers"], document["memory_mb"]
    found = []
    if (cpu := idle["fleet"]["server_cpu_percent"]) > MOST_SERVER_CPU:
        found.append(f"the idle server takes {cpu:g} % of a core, at most {MOST_SERVER_CPU:g}")
    if (ratio := requests["ratio"]) > MOST_LATENCY_RATIO:
        found.append(f"a request takes {ratio:g} times that of five, at most {MOST_LATENCY_RATIO}")
    five, fleet = takeovers["five"]["p50_ms"], takeovers["fleet"]["p50_ms"]
    if fleet > five + ROUND_MS:
        found.append(f"a takeover takes {fleet:g} ms, with five nodes {five:g}")
    if memory["more"] > MOST_MEMORY_MB:
        found.append(f"a node takes {memory['more']:g} MB more, at most {MOST_MEMORY_MB:g}")
    for name in ("five", "fleet"):
        if lost := takeovers[name]["lost"]:
            found.append(f"{lost} requests of {name} were lost around a kill")
    return found


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure_large_fleet`."""
    from rich import box
    from rich.table import Table

    from nodes.console import out

    idle, requests = document["idle"], document["requests"]
    takeovers, memory = document["takeovers"], document["memory_mb"]
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("", "five nodes", f"{document['nodes']} nodes"):
        table.add_column(heading, justify="right" if heading else "left")

    def row(label: str, values: dict[str, Any], key: str) -> None:
        table.add_row(label, f"{values['five'][key]:g}", f"{values['fleet'][key]:g}")

    row("idle: server, % of a core", idle, "server_cpu_percent")
    row("idle: messages/s", idle, "messages_per_s")
    row("idle: KB/s", _kilobytes(idle), "kb")
    row("server, MB", idle, "server_rss_mb")
    row("connections", idle, "connections")
    row("request p50, ms", requests, "p50_ms")
    row("request p99, ms", requests, "p99_ms")
    row("shard-2 killed: no answer for, ms (p50)", takeovers, "p50_ms")
    row("requests lost", takeovers, "lost")
    table.add_row("a node, MB", f"{memory['five']:g}", f"{memory['fleet']:g}")
    out.print(table)
    out.print(
        f"{document['real']} nodes of the fleet are real processes, the others are imitated "
        f"({idle['imitated_cpu_percent']:g} % of a core). Real nodes were ready after "
        f"{document['ready_s']:g} s and knew all after {document['knows_all_s']:g} s. A request, "
        f"by turns: {requests['ratio']:g} times ({requests['ratios'][0]:g} to "
        f"{requests['ratios'][-1]:g}). Suspicions while idle: {idle['suspected']}.",
        highlight=False,
    )


def _kilobytes(idle: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {name: {"kb": idle[name]["bytes_per_s"] // 1000} for name in ("five", "fleet")}
