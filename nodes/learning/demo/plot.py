"""Accuracies over time: characters for the terminal, and a picture where matplotlib is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from nodes.learning.demo.record import LearnRecord

ROWS, COLUMNS = 14, 72


def plot(record: LearnRecord, seconds: float) -> Text:
    """Each learner's accuracy, that of the answers, and the references, from 0 to 1."""
    grid = [[(" ", "")] * COLUMNS for _ in range(ROWS)]

    def put(at: float, value: float, sign: str, style: str) -> None:
        column = min(COLUMNS - 1, max(0, int(at / seconds * COLUMNS)))
        row = min(ROWS - 1, max(0, round((1 - value) * (ROWS - 1))))
        grid[row][column] = (sign, style)

    references = record.references
    if references is not None:
        mean = sum(references.alone) / len(references.alone)
        for column in range(COLUMNS):
            put((column + 0.5) * seconds / COLUMNS, mean, "┄", "red")
            put((column + 0.5) * seconds / COLUMNS, references.central, "─", "green")
    for points in record.nodes.values():
        for at, value in points:
            put(at, value, "·", "dim")
    for at, value, _ in record.served:
        put(at, value, "▪", "bold cyan")
    text = Text()
    for number, row in enumerate(grid):
        label = 1 - number / (ROWS - 1)
        text.append(f"{label:4.2f} ┤" if number % 3 == 1 or number == 0 else "     │", "dim")
        for sign, style in row:
            text.append(sign, style)
        text.append("\n")
    text.append(f"     └{'─' * COLUMNS}\n      0 s{seconds:>{COLUMNS - 5}.0f} s\n", "dim")
    text.append("      · a learner  ", "dim")
    text.append("▪ the pipeline's answers  ", "cyan")
    text.append("─ central training  ", "green")
    text.append("┄ each alone\n", "red")
    return text


def picture(record: LearnRecord, path: str) -> str:
    """Write the plot as a PNG; returns its path, or "" where matplotlib is not installed. Raises
    `OSError`."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return ""
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for name, points in sorted(record.nodes.items()):
        axes.plot(*_columns(points), linewidth=1, label=name)
    if record.served:
        answers = _columns((at, value) for at, value, _ in record.served)
        axes.plot(*answers, "k", linewidth=2, label="answers of the pipeline")
    references = record.references
    if references is not None:
        axes.axhline(references.central, color="green", linestyle="--", label="central training")
        alone = sum(references.alone) / len(references.alone)
        axes.axhline(alone, color="red", linestyle=":", label="each alone (mean)")
    for at, text in record.story:
        axes.axvline(at, color="grey", linewidth=0.5)
        axes.text(at, 0.02, text, rotation=90, fontsize=6, verticalalignment="bottom")
    axes.set_xlabel("seconds")
    axes.set_ylabel("accuracy on images that nobody trains on")
    axes.set_ylim(0, 1.02)
    axes.legend(fontsize=7, loc="lower right", framealpha=1.0)
    figure.tight_layout()
    figure.savefig(Path(path), dpi=110)
    pyplot.close(figure)
    return path


def _columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    kept = list(points)
    return [at for at, _ in kept], [value for _, value in kept]
