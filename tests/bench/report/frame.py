"""The frame of every benchmark around its measurement: turns, progress, result, verdict, errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from bench.report.machine import machine
from nodes.console import err, print_json, report
from nodes.event_loop import run_event_loop
from nodes.logs import LogForm, set_up_logging
from shards.errors import ShardsError
from swarm.errors import SwarmError

Document = dict[str, Any]
Progress = Callable[[str], None]
"""Shows one line of text in place of the line before."""
Plan = TypeVar("Plan")

EXPLAINED_ERRORS = (
    SwarmError,
    ShardsError,
    OSError,
    RuntimeError,
    TimeoutError,
    ValueError,
)
"""Errors of a measurement whose message says enough; all others are shown with their traceback."""


def by_turns(rounds: int, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Rounds, from 1 on, of all names: A B C, B C A, … So nobody always follows the same one, and
    whatever slows the machine for a while slows all."""
    for number in range(1, rounds + 1):
        first = (number - 1) % len(names)
        for name in (*names[first:], *names[:first]):
            yield number, name


@dataclass(frozen=True)
class Benchmark(Generic[Plan]):
    """A benchmark's name in documents, its measurement, and how its document is told.

    measure: returns the document, or a coroutine that does. show: prints the document for people.
    draw: writes the document as an image. misses: a sentence for each target that the document
    misses; None for a benchmark that has no targets.
    """

    name: str
    measure: Callable[[Plan, Progress], Document | Coroutine[Any, Any, Document]]
    show: Callable[[Document], None]
    draw: Callable[[Document, Path], None] | None = None
    misses: Callable[[Document], list[str]] | None = None

    def run(self, plan: Plan, as_json: bool = False, chart: str = "", output: str = "") -> int:
        """Measure, and tell the result; returns the exit code.

        The document goes to standard output, as JSON or as tables; to `output` as a JSON file; and
        to `chart` as an image. Missed targets are told on standard error, too. Exit code 1: a wrong
        answer, a failed start, a missed target; 130: interrupted.
        """
        set_up_logging(LogForm())
        logging.getLogger("swarm").setLevel(logging.ERROR)
        if chart and self.draw is not None:
            try:
                import matplotlib  # noqa: F401  before minutes of measuring, not after
            except ImportError:
                return report(ChartsMissing(), as_json)
        try:
            with err.status("starting …", spinner="line") as status:
                document = self.document(plan, lambda text: status.update(text))
        except (KeyboardInterrupt, asyncio.CancelledError):
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
        return self._tell(document, as_json, chart, output)

    def document(self, plan: Plan, progress: Progress = lambda _: None) -> Document:
        """Measure; returns the whole document. Raises the measurement's errors."""
        measured = self.measure(plan, progress)
        if isinstance(measured, Coroutine):
            measured = run_event_loop(measured)
        document = {"v": 1, "bench": self.name, "machine": machine(), **measured}
        if self.misses is not None:
            missed = self.misses(document)
            document |= {"missed": missed, "passed": not missed}
        return document

    def _tell(self, document: Document, as_json: bool, chart: str, output: str) -> int:
        if output:
            Path(output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if as_json:
            print_json(document)
        else:
            self.show(document)
        if chart and self.draw is not None:
            self.draw(document, Path(chart))
            err.print(f"drawn: {chart}", markup=False)
        for line in document.get("missed", ()):
            err.print(f"missed: {line}", markup=False, highlight=False, soft_wrap=True)
        return int(bool(document.get("missed")))


class ChartsMissing(ImportError):
    """matplotlib is not installed."""

    def __str__(self) -> str:
        return "--chart needs matplotlib: pip install 'matplotlib>=3.8'"
