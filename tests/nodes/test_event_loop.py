"""The signals that end a program: told twice at once it drains once, told again it ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from support.commands import ROOT, environment, heed_ctrl_c

from nodes.event_loop import SAME_WISH

PROGRAM = """
import asyncio, time
from nodes.event_loop import run_event_loop, stop_on_signals

async def main():
    stop = stop_on_signals()
    print("ready", flush=True)
    await stop.wait()
    print("drains", flush=True)
    await asyncio.sleep({drains})
    print("drained", flush=True)
    return 0

code = run_event_loop(main())
time.sleep({teardown})  # as a library's end may take
raise SystemExit(code)
"""


def started(drains: float, teardown: float) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(drains=drains, teardown=teardown)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
        preexec_fn=heed_ctrl_c,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("apart", [0.0, 0.001, 0.005])
@pytest.mark.parametrize(("drains", "teardown"), [(0.2, 0.0), (0.0, 0.2)])
def test_two_signals_within_five_milliseconds_drain_once(
    drains: float, teardown: float, apart: float, second: signal.Signals
) -> None:
    program = started(drains, teardown)
    program.send_signal(signal.SIGTERM)
    time.sleep(apart)
    program.send_signal(second)
    told, errors = program.communicate(timeout=30)
    assert (program.returncode, told, errors) == (0, "drains\ndrained\n", "")


@pytest.mark.parametrize(("drains", "teardown"), [(30.0, 0.0), (0.0, 30.0)])
def test_a_signal_that_is_sent_again_ends_the_program_at_once(
    drains: float, teardown: float
) -> None:
    program = started(drains, teardown)
    program.send_signal(signal.SIGTERM)
    assert program.stdout is not None
    assert program.stdout.readline() == "drains\n"
    time.sleep(SAME_WISH * 1.2)  # another wish by now
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=20)
    assert program.returncode == 130
