"""Hunt for tests that fail now and then: run a selection many times, shuffled, on a busy machine.

    uv run python tests/hunt.py tests/swarm/transport/lane --times 30 --busy 2

Runs the selection `--times` times beside `--busy` endless loops, each time in another order of the
tests, and prints which test failed how often. The first failure of each test is kept in `--keep`.
Exits 1 where a test failed. Time and processes are bounded: a run that takes longer than
`--limit` seconds is ended and counted as failed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RAN_OUT = "(the run took too long)"
BUSY_LOOP = "import sys\nwhile True: pass"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def failures_of(report: Path) -> dict[str, str]:
    """The tests of a JUnit document that failed, with what they said."""
    failed: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        for verdict in (*case.findall("failure"), *case.findall("error")):
            name = f"{case.get('classname')}::{case.get('name')}"
            failed[name] = (verdict.get("message") or "") + "\n" + (verdict.text or "")
    return failed


def run_once(selection: list[str], seed: int, workers: int, limit: float) -> dict[str, str]:
    """One run, in the order of `seed`; the tests that failed, with what they said."""
    with tempfile.TemporaryDirectory(prefix="hunt-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *selection]
        command += ["--shuffle", str(seed), f"--junitxml={report}", "--tb=short"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return {RAN_OUT: output.decode(errors="replace")[-4000:]}
        if process.returncode not in (0, 1) or not report.exists():  # nothing that could fail ran
            sys.exit(f"nothing ran: {output.decode(errors='replace')}")
        return failures_of(report)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run tests many times, and say which fail.")
    parser.add_argument("selection", nargs="+", help="as pytest takes it: files, folders, options")
    parser.add_argument("--times", type=int, default=30, help="runs (30)")
    parser.add_argument("--busy", type=int, default=2, help="endless loops beside them (2)")
    parser.add_argument("--workers", type=int, default=0, help="processes of a run (0: this one)")
    parser.add_argument("--seed", type=int, help="of the first run's order; drawn by default")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds a run may take (900)")
    parser.add_argument("--keep", type=Path, help="folder for the first failure of each test")
    options, more = parser.parse_known_args()
    first = options.seed if options.seed is not None else random.randrange(10**6)
    counted: Counter[str] = Counter()
    with busy_loops(options.busy):
        for number in range(options.times):
            failed = run_once(
                options.selection + more, first + number, options.workers, options.limit
            )
            for name, said in failed.items():
                if options.keep and not counted[name]:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    stem = "".join(c if c.isalnum() else "_" for c in name)[:150]
                    (options.keep / f"{stem}.txt").write_text(f"seed {first + number}\n{said}")
                counted[name] += 1
            state = f"{len(failed)} failed" if failed else "green"
            done = f"run {number + 1} of {options.times}, seed {first + number}"
            print(f"{done}: {state}", flush=True)
    for name, count in counted.most_common():
        print(f"{count:4d} of {options.times}  {name}")
    return 1 if counted else 0


if __name__ == "__main__":
    sys.exit(main())
