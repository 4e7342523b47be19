"""Shared by all commands: consoles, errors that say what to do, exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from rich.console import Console

from nodes.event_loop import run_event_loop
from nodes.extras import missing_extra
from shards.errors import ShardsError
from swarm.errors import BadAddress, InvalidArgument, SwarmError, Unauthenticated
from swarm.requests.request import DELIVERY_MODES

out = Console()
err = Console(stderr=True)


def print_json(doc: Any) -> None:
    """One JSON document, on one line, on standard output."""
    sys.stdout.write(json.dumps(doc) + "\n")
    sys.stdout.flush()


def conclude(as_json: bool, document: Any, *lines: str) -> None:
    """What a command has done: one JSON document, or lines for people. The first one is on standard
    output; the others say what to do next, on standard error."""
    if as_json:
        print_json(document)
        return
    out.print(lines[0], markup=False, soft_wrap=True, highlight=False)
    for line in lines[1:]:
        err.print(line, markup=False, soft_wrap=True, highlight=False)


def guarded(main: Callable[[], Coroutine[Any, Any, int | None]], as_json: bool = False) -> int:
    """Run a command's coroutine; returns its exit code, 0 for None.

    An error becomes one clear line and exit code 1, Ctrl-C exit code 130."""
    try:
        return run_event_loop(main()) or 0
    except (SwarmError, ShardsError, OSError) as error:
        return report(error, as_json)
    except ModuleNotFoundError as error:
        return not_installed(error, as_json)
    except BaseExceptionGroup as group:
        expected, rest = group.split((SwarmError, ShardsError, OSError))
        if rest is not None:
            raise
        assert expected is not None
        return report(_first(expected), as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


def not_installed(error: ModuleNotFoundError, as_json: bool) -> int:
    """Print which extra a command needs; returns the exit code. Raises the error itself where no
    extra brings its module: that is a fault of this program."""
    missing = missing_extra(error, "this command")
    if missing is None:
        raise error
    return report(missing, as_json)


def report(error: BaseException, as_json: bool) -> int:
    """Print an error for a person or a program.

    Returns the exit code: 2 for an address, credentials, keys or certificates that do not do, else
    1."""
    status = str(error.status) if isinstance(error, SwarmError) else "INVALID_ARGUMENT"
    if as_json:
        print_json({"error": str(error), "status": status})
    err.print(f"[bold red]swarm:[/] {status}: ", end="")
    err.print(str(error), markup=False, highlight=False, soft_wrap=True)
    return 2 if isinstance(error, Unauthenticated | BadAddress) else 1


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, and return True; end it, and return False, as soon as `stop` is set."""
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.wait({working, stopped})


UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
LONG_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Seconds of `50ms`, `2s`, `1m`, `0`. A number alone is refused: settings of nodes are in
    milliseconds, Python's budgets in seconds. Raises `InvalidArgument`."""
    return 0.0 if text.strip() == "0" else _seconds(text, UNITS, "50ms, 2s or 1m")


def long_duration(text: str) -> float:
    """Seconds of `90d`, `12h`, `30m`, `45s`. Raises `InvalidArgument`."""
    return _seconds(text, LONG_UNITS, "90d, 12h, 30m or 45s")


def ago(text: str) -> float:
    """Seconds of `500ms`, `90` (seconds), `10m`, `2h`, `1d`. Raises `InvalidArgument`."""
    return _seconds(text, {"": 1.0, **UNITS, **LONG_UNITS}, "5m, 2h or 1d")


def _seconds(text: str, units: Mapping[str, float], examples: str) -> float:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", text.strip())
    if match is None or match[2] not in units:
        raise InvalidArgument(f"{text!r} is no duration: write {examples}")
    return float(match[1]) * units[match[2]]


def delivery(text: str) -> str:
    """The library's name of a delivery, `durable` or fast mode's; `core` is fast mode's old name.

    Raises `InvalidArgument`.
    """
    mode = DELIVERY_MODES.get(text)
    if mode is None:
        raise InvalidArgument(f"--delivery {text!r}: it is durable or fast")
    return mode
