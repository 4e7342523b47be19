"""A bar on the terminal for work that takes longer than a second; a plain line elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from nodes.console import err

SHOWN_AFTER = 1.0  # seconds


@contextmanager
def progress(
    title: str, *, total: int = 0, silent: bool = False, console: Console = err
) -> Iterator[Callable[[int], None]]:
    """Say what begins, and show how far it is, until the block ends.

    Yields a function that takes the bytes that were done since its last call. total: bytes; 0 where
    nobody knows how much there is to do. silent: nothing is printed, as with `--json`.
    """
    if silent:
        yield lambda done: None
        return
    console.print(f"{title} …", markup=False, highlight=False)
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = [TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn()]
    if total:
        columns.insert(2, DownloadColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(title.split()[0], total=total or None)
    # The work may block this thread: the bar begins, and moves, in threads of its own.
    shown = Timer(SHOWN_AFTER, bar.start)
    shown.daemon = True
    shown.start()
    try:
        yield lambda done: bar.advance(task, done)
    finally:
        shown.cancel()
        shown.join()
        bar.stop()


@contextmanager
def phases(
    *, silent: bool = False, console: Console = err
) -> Iterator[Callable[[str, int, int], None]]:
    """Show work of several phases, until the block ends: a line each, and a bar on a terminal.

    Yields a function that takes a phase's title, the steps that are done in it, and all its steps,
    0 where nobody counts them. silent: nothing is printed, as with `--json`.
    """
    if silent:
        yield lambda title, done, total: None
        return
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=None)
    shown = ""

    def tell(title: str, done: int, total: int) -> None:
        nonlocal shown
        if title != shown:
            shown = title
            console.print(f"{title} …", markup=False, highlight=False)
            bar.reset(task, description=title.split()[0], total=total or None)
        bar.update(task, completed=done)

    with bar:
        yield tell
