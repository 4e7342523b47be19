"""The result of `swarm bench hop` as a table and as a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.cost.hop.measure import IN_PROCESS, OURS
from bench.cost.hop.sizes import size_text
from bench.report.charts import new_chart, save_chart
from bench.report.figure import Figure

LABELS = {
    "up": "swarm up",
    "mesh": "mesh",
    "mesh_wire": "mesh, wire",
    "nats_core": "raw core",
    "nats_jetstream": "raw JetStream",
    "nats_pull": "raw pull",
    "pyzmq": "pyzmq",
    "zenoh": "Zenoh",
    IN_PROCESS: "one process",
}
RATIO_HEADINGS = {"up": "up", "mesh": "mesh", "mesh_wire": "wire"}


def figures_of(document: dict[str, Any]) -> dict[str, Figure]:
    """The document's figures by name."""
    return {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}


def contenders(document: dict[str, Any], size: int) -> list[str]:
    """The names of the contenders that were measured at this size, the mesh first."""
    (entry,) = [entry for entry in document["sizes"] if entry["bytes"] == size]
    return list(entry["rounds"][0])


def show(document: dict[str, Any]) -> None:
    """One table for each feature size: a row per contender."""
    from rich import box
    from rich.table import Table

    from nodes.console import out

    figures = figures_of(document)
    out.print(f"Overhead per hop in ms, {document['hops']} stages, {document['delivery']} delivery")
    for entry in document["sizes"]:
        size = entry["bytes"]
        title = f"features of {size_text(size)}"
        if entry.get("shared_memory"):
            title += ", the mesh's through shared memory"
        table = Table(box=box.SIMPLE, title=title, title_justify="left")
        table.add_column("contender", no_wrap=True)
        names = contenders(document, size)
        ours = [name for name in OURS if name in names]
        # On 80 columns two ratios leave no room for the p90, which the document has.
        shares = ("p50", "p90", "p99") if len(ours) == 1 else ("p50", "p99")
        headings = ["p50 (rounds)", *shares[1:], *(f"{RATIO_HEADINGS[own]}/this" for own in ours)]
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for name in names:
            hops = [figures.get(f"{size}/{name}/hop_{share}_us") for share in shares]
            ratios = [
                figures.get(f"{size}/{own}/hop_p50_over_{name}")
                or figures.get(f"{size}/{own}/end_to_end_p50_over_{name}")
                for own in ours
            ]
            cells = ["-" if hop is None else f"{hop.value / 1e3:.3g}" for hop in hops]
            if hops[0] is not None:
                cells[0] += f" ({hops[0].low / 1e3:.3g}-{hops[0].high / 1e3:.3g})"
            texts = ["" if ratio is None else str(ratio) for ratio in ratios]
            cells += [texts[0], *(text.partition(" ")[0] for text in texts[1:])]
            table.add_row(LABELS.get(name, name), *cells)
        for name, reason in entry["unavailable"].items():
            table.add_row(LABELS.get(name, name), reason)
        out.print(table)
        if entry.get("node_restarts"):
            out.print(f"[bold red]{entry['node_restarts']} node processes ended[/]: measure again")
    total = sum(entry["verified"] for entry in document["sizes"])
    out.print(
        f"{total} answers, each compared with the expected one. Ratios are of the overhead per "
        "hop (of the whole request for `one process`), taken within a round."
    )


def draw(document: dict[str, Any], path: Path) -> None:
    """Overhead per hop over feature size, both logarithmic; the bars span the rounds."""
    figures = figures_of(document)
    sizes = [entry["bytes"] for entry in document["sizes"]]
    figure, plot = new_chart("overhead per hop (p50)", "bytes of features", "microseconds")
    for name, label in LABELS.items():
        points = [(s, figures.get(f"{s}/{name}/hop_p50_us")) for s in sizes]
        known = [(s, f) for s, f in points if f is not None and f.value > 0]
        if not known:
            continue
        values = [f.value for _, f in known]
        below = [max(0.0, f.value - max(f.low, 1.0)) for _, f in known]
        above = [f.high - f.value for _, f in known]
        plot.errorbar(
            [s for s, _ in known], values, yerr=[below, above], label=label, marker="o", capsize=3
        )
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    save_chart(figure, plot, path)
