"""The frame of every benchmark command around its measurement: progress, result, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.console import err, print_json, report
from shards.errors import ShardsError
from swarm.errors import SwarmError

Document = dict[str, Any]
Progress = Callable[[str], None]
"""Shows one line of text in place of the line before."""
Measure = Callable[[Progress], Document]
Show = Callable[[Document], None]
Draw = Callable[[Document, Path], None]

EXPLAINED_ERRORS = (
    SwarmError,
    ShardsError,
    OSError,
    RuntimeError,
    TimeoutError,
    ValueError,
)
"""Errors of a measurement whose message says enough; all others are shown with their traceback."""


def run_benchmark(
    measure: Measure,
    show: Show,
    draw: Draw | None = None,
    as_json: bool = False,
    chart: str = "",
    output: str = "",
) -> int:
    """Run a measurement and tell its result; returns the exit code.

    The document goes to standard output, as JSON or by `show` as tables; to `output` as a JSON
    file; and to `chart` as an image. Exit code 1: a wrong answer or a failed start; 130:
    interrupted.
    """
    if chart and draw is not None:
        try:
            import matplotlib  # noqa: F401  before minutes of measuring, not after
        except ImportError:
            return report(ChartsMissing(), as_json)
    try:
        with err.status("starting …", spinner="line") as status:
            document = measure(lambda text: status.update(text))
    except KeyboardInterrupt:
        return 130
    except EXPLAINED_ERRORS as error:
        return report(error, as_json)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, EXPLAINED_ERRORS):
            raise
        return report(first, as_json)
    if output:
        Path(output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        show(document)
    if chart and draw is not None:
        draw(document, Path(chart))
        err.print(f"drawn: {chart}", markup=False)
    return 0


def run_judged_benchmark(
    measure: Measure,
    misses: Callable[[Document], list[str]],
    show: Show,
    as_json: bool = False,
    output: str = "",
) -> int:
    """As `run_benchmark`; the targets that the document misses are in it as `missed`, and are told
    on standard error. Exit code 1 where there are some."""
    missed: list[str] = []

    def judged(progress: Progress) -> Document:
        document = measure(progress)
        missed.extend(misses(document))
        return {**document, "missed": missed}

    code = run_benchmark(judged, show, as_json=as_json, output=output)
    for line in missed:
        err.print(f"missed: {line}", markup=False)
    return code or (1 if missed else 0)


class ChartsMissing(ImportError):
    """matplotlib is not installed."""

    def __str__(self) -> str:
        return "--chart needs matplotlib: pip install 'matplotlib>=3.8'"
