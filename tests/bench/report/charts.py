"""Drawing with matplotlib, which is optional and loaded only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def new_chart(title: str, x_label: str, y_label: str) -> tuple[Any, Any]:
    """A figure and its only plot, titled; no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    plot.set_title(title)
    plot.set_xlabel(x_label)
    plot.set_ylabel(y_label)
    plot.grid(True, which="both", alpha=0.25)
    return figure, plot


def save_chart(figure: Any, plot: Any, path: Path) -> None:
    """Add the legend and write the file; the suffix of `path` says its format."""
    plot.legend()
    figure.savefig(path)
