"""One request's time as a bar for each hop: text for a terminal, a figure for a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from swarm.tracing.anatomy import KINDS, Kind, Part

WIDTH = 48  # characters of the longest bar
SIGNS: dict[Kind, str] = {
    "outside": "·",
    "onward": "~",
    "lane": "░",
    "queue": "▒",
    "batch wait": "▓",
    "compute": "█",
}
LEGEND = {
    "outside": "to the first stage and back",
    "onward": "packing, sending, storing",
    "lane": "in the lane, and to the node",
    "queue": "behind other requests",
    "batch wait": "for company, or a free processor",
    "compute": "computing",
}
COLOURS: dict[Kind, str] = {
    "outside": "#9ca3af",
    "onward": "#60a5fa",
    "lane": "#fbbf24",
    "queue": "#f97316",
    "batch wait": "#a78bfa",
    "compute": "#16a34a",
}


def bar_lines(parts: Sequence[Part], label: dict[str, str]) -> list[str]:
    """A line for each hop, and a legend of the parts that occur. label: of a node's id."""
    whole = sum(part.length for part in parts) or 1
    lines = []
    for (stage, node), group in groupby(parts, key=lambda part: (part.stage, part.node)):
        hop = list(group)
        name = f"stage {stage} {label.get(node, node)}" if node else "outside"
        total = sum(part.length for part in hop)
        lines.append(f"{name:<22.22} {total / 1e3:8.3f} ms  {_bar(hop, whole)}".rstrip())
        told = "  ".join(f"{part.kind} {part.length / 1e3:.3f}" for part in hop)
        lines.append(f"{'':<22} {told}")
    kinds = [kind for kind in KINDS if any(part.kind == kind for part in parts)]
    lines.append("  ".join(f"{SIGNS[kind]} {kind}: {LEGEND[kind]}" for kind in kinds))
    return lines


def _bar(parts: Sequence[Part], whole: int) -> str:
    """At least one character for each part: a short one shall be seen too."""
    return "".join(SIGNS[p.kind] * max(1, round(p.length / whole * WIDTH)) for p in parts)


def figure(stages: Sequence[tuple[str, dict[Kind, float]]], title: str, path: str) -> None:
    """Write a figure (.png or .svg) of stages and milliseconds of their parts, stacked.

    Raises `ImportError` without matplotlib, and `OSError` where the file cannot be written.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8, 0.9 + 0.5 * len(stages)), layout="constrained")
    axes = drawn.add_subplot()
    names = [name for name, _ in stages]
    left = [0.0] * len(stages)
    for kind in KINDS:
        lengths = [parts.get(kind, 0.0) for _, parts in stages]
        if any(lengths):
            axes.barh(names, lengths, left=left, color=COLOURS[kind], label=kind)
            left = [a + b for a, b in zip(left, lengths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(title)
    axes.legend(loc="best", frameon=False)
    drawn.savefig(path, dpi=150)
