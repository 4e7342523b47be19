"""Messages for people and for programs: on standard error, one a line, never a flood.

Libraries and rooms log by the standard library. `--log-json` renders the same messages as JSON with
structlog: `at`, `level`, `logger`, `event`, the process's own fields (`role`, `mesh`, `node`), and
`fields` that a message was given (`extra={"request": …}`). No message has a payload or a key.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from swarm.errors import InvalidArgument

TEXT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
BURST = 20  # messages of one kind that pass at once
PER_SECOND = 2.0  # messages of one kind that pass in the long run
MOST_KINDS = 1024  # kinds of messages that are known; a new one beyond pushes the oldest out
INSTALL = "pip install 'swarm-mesh[node]'"
# What a record of the standard library has of its own; all else was given as `extra`.
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


@dataclass(frozen=True)
class LogForm:
    """verbose: details too. as_json: JSON instead of text."""

    verbose: bool = False
    as_json: bool = False


class FloodGate(logging.Filter):
    """Lets through a burst of messages of one kind, then a few a second (a token bucket), and says
    how many it kept back.

    A kind is a logger with a template: the same message with other numbers is of the same kind.
    Errors always pass. now(): seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record passes; its text says how many before it did not."""
        if record.levelno >= logging.ERROR:
            return True
        key = (record.name, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.pop(next(iter(self._kinds)), None)  # another thread may do so too
            kind = self._kinds[key] = _Kind(self._now())
        if not kind.passes(self._now()):
            return False
        left_out, kind.suppressed = kind.suppressed, 0
        if left_out:
            record.msg = f"{record.msg} [{left_out} like this one left out]"
        return True


class _Kind:
    __slots__ = ("_at", "_tokens", "suppressed")

    def __init__(self, now: float) -> None:
        self._tokens = float(BURST)
        self._at = now
        self.suppressed = 0

    def passes(self, now: float) -> bool:
        self._tokens = min(BURST, self._tokens + (now - self._at) * PER_SECOND)
        self._at = now
        if self._tokens < 1.0:
            self.suppressed += 1
            return False
        self._tokens -= 1.0
        return True


def set_up_logging(form: LogForm, **process: str) -> None:
    """Messages go to standard error: standard output belongs to results.

    process: fields of every message of this process. Raises `InvalidArgument` where JSON was asked
    for and structlog is not installed.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter(process) if form.as_json else logging.Formatter(TEXT))
    handler.addFilter(FloodGate())
    level = logging.DEBUG if form.verbose else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("nats").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _json_formatter(process: dict[str, str]) -> logging.Formatter:
    try:
        import structlog
    except ImportError as error:
        raise InvalidArgument(f"--log-json needs structlog ({error}): {INSTALL}") from None

    def own_fields(_: Any, __: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        record = event.get("_record")
        given = {k: v for k, v in vars(record).items() if k not in _OWN} if record else {}
        return {**process, **given, **event}

    formatter: logging.Formatter = structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            own_fields,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=json.dumps),
        ]
    )
    return formatter
