"""Messages for people and for programs: on standard error, one a line, never a flood.

`--log-json` renders them as JSON: `at`, `level`, `logger`, `event`, the process's own fields
(`role`, `mesh`, `node`), and fields that a message was given (`extra={"request": …}`). No message
has a payload or a key.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from swarm.flow.bucket import TokenBucket

TEXT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
BURST = 20  # messages of one kind that pass at once
PER_SECOND = 2.0  # messages of one kind that pass in the long run
MOST_KINDS = 1024  # kinds of messages that are known; a new one beyond pushes the oldest out
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
            kind = self._kinds[key] = _Kind()
        if not kind.bucket.take(self._now()):
            kind.suppressed += 1
            return False
        left_out, kind.suppressed = kind.suppressed, 0
        if left_out:
            record.msg = f"{record.msg} [{left_out} like this one left out]"
        return True


class _Kind:
    def __init__(self) -> None:
        self.bucket = TokenBucket(PER_SECOND, BURST)
        self.suppressed = 0


class _AsJson(logging.Formatter):
    """process: fields of every message of this process."""

    def __init__(self, process: Mapping[str, str]) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        doc = {
            **self._process,
            **{name: value for name, value in vars(record).items() if name not in _OWN},
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "at": at.replace("+00:00", "Z"),
        }
        if record.exc_info:
            doc["exception"] = self.formatException(record.exc_info)
        return json.dumps(doc, default=repr)


def set_up_logging(form: LogForm, **process: str) -> None:
    """Messages go to standard error: standard output belongs to results.

    process: fields of every message of this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson(process) if form.as_json else logging.Formatter(TEXT))
    handler.addFilter(FloodGate())
    level = logging.DEBUG if form.verbose else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
