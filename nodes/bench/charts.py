"""The charts' common part. matplotlib is optional and loaded only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    """A figure and its one plot, titled; no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    plot.set_title(title)
    plot.set_xlabel(x)
    plot.set_ylabel(y)
    plot.grid(True, which="both", alpha=0.25)
    return figure, plot


def save(figure: Any, plot: Any, path: Path) -> None:
    """Add the legend and write the file; its format follows from its suffix."""
    plot.legend()
    figure.savefig(path)
