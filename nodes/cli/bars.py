"""One request's time as a bar for each hop, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from swarm.tracing.anatomy import KINDS, Kind, TimePart

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


def bar_lines(parts: Sequence[TimePart], label: dict[str, str]) -> list[str]:
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


def _bar(parts: Sequence[TimePart], whole: int) -> str:
    """At least one character for each part: a short one shall be seen too."""
    return "".join(SIGNS[p.kind] * max(1, round(p.length / whole * WIDTH)) for p in parts)
