"""The bar: only on a terminal, only for work that lasts, never with `--json`."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console
from support.waiting import eventually_now

from nodes import progress as module
from nodes.progress import phases, progress


def terminal(is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=80, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_plain_line_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_AFTER", 0.0)
    console, threads = terminal(False), set(threading.enumerate())
    with progress("pushing x", total=10, console=console) as done:
        done(10)
        assert set(threading.enumerate()) <= threads, "nothing draws"
    assert printed(console) == "pushing x …\n"


def test_nothing_with_json() -> None:
    console = terminal(True)
    with progress("pushing x", total=10, silent=True, console=console) as done:
        done(10)
    assert printed(console) == ""


def test_quick_work_shows_no_bar() -> None:
    console = terminal(True)
    with progress("pushing x", total=10, console=console) as done:
        done(10)
    assert printed(console) == "pushing x …\n"


@pytest.mark.parametrize("total", [0, 2000])
def test_work_that_lasts_shows_how_far_it_is_and_the_bar_goes_with_it(
    monkeypatch: pytest.MonkeyPatch, total: int
) -> None:
    monkeypatch.setattr(module, "SHOWN_AFTER", 0.0)
    console = terminal(True)
    seen = "1.0/2.0 kB" if total else "pushing"
    with progress("pushing x", total=total, console=console) as done:
        done(1000)
        # The work blocks this thread, and the bar moves all the same.
        eventually_now(lambda: seen in printed(console).removeprefix("pushing x …\n"))
    text = printed(console)
    assert ("kB" in text) == bool(total)
    assert text.endswith("\x1b[2K"), "the bar is wiped away at the end"


def test_an_error_passes_and_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_AFTER", 0.0)
    console, threads = terminal(True), set(threading.enumerate())

    def work() -> None:
        with progress("splitting", console=console):
            eventually_now(lambda: printed(console).count("splitting") > 1)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    eventually_now(lambda: set(threading.enumerate()) <= threads, "nothing draws any more")
    assert printed(console).endswith("\x1b[2K")


def test_each_phase_is_a_line_and_on_a_terminal_a_bar_with_its_steps() -> None:
    plain, watched, silent = terminal(False), terminal(True), terminal(True)
    for console in (plain, watched, silent):
        with phases(console=console, silent=console is silent) as tell:
            for done in range(4):
                tell("seeking layers", done, 3)
            tell("timing", 0, 0)
    assert printed(plain) == "seeking layers …\ntiming …\n"
    assert "seeking layers …" in printed(watched)
    assert printed(silent) == ""
