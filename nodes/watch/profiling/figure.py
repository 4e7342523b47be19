"""The stages of a profile as a figure for a page."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.tracing.anatomy import KINDS, Kind

COLOURS: dict[Kind, str] = {
    "outside": "#9ca3af",
    "onward": "#60a5fa",
    "lane": "#fbbf24",
    "queue": "#f97316",
    "batch wait": "#a78bfa",
    "compute": "#16a34a",
}


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
