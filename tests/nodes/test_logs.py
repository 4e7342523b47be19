"""Messages of a node: text or JSON, and never a flood."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from nodes.logs import BURST, PER_SECOND, FloodGate


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(text: str, level: int = logging.INFO, name: str = "swarm.node") -> logging.LogRecord:
    return logging.LogRecord(name, level, "file", 1, text, (), None)


def test_a_burst_passes_and_what_was_left_out_is_told_with_the_next_one() -> None:
    clock = Clock()
    gate = FloodGate(clock)
    passed = [gate.filter(record("lost %s")) for _ in range(BURST + 30)]
    assert passed == [True] * BURST + [False] * 30
    clock.now += 1 / PER_SECOND
    after = record("lost %s")
    assert gate.filter(after)
    assert after.getMessage() == "lost %s [30 like this one left out]"


def test_another_kind_and_every_error_passes_in_a_flood() -> None:
    gate = FloodGate(Clock())
    for _ in range(BURST + 1):
        gate.filter(record("lost"))
    assert not gate.filter(record("lost"))
    assert gate.filter(record("found"))
    assert gate.filter(record("lost", name="swarm.link"))
    assert gate.filter(record("lost", logging.ERROR))


def test_json_has_a_message_a_line_with_the_fields_of_process_and_message() -> None:
    code = (
        "import logging; from nodes.logs import LogForm, set_up_logging\n"
        "set_up_logging(LogForm(as_json=True), role='shard-1', mesh='m')\n"
        "log = logging.getLogger('swarm.stage')\n"
        "log.info('request %s is late', 7, extra={'request': '01J', 'stage': 2})\n"
        "log.debug('a detail')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('a fault')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stderr.splitlines())
    at = first.pop("at")
    assert at.endswith("Z")
    assert first == {
        "level": "info",
        "logger": "swarm.stage",
        "event": "request 7 is late",
        "role": "shard-1",
        "mesh": "m",
        "request": "01J",
        "stage": 2,
    }
    assert "ZeroDivisionError" in second["exception"]
