"""The client process: ``python -m bench.rivals.peers.client <contender> <workload> <params>``.

``contender`` is a name of ``catalogue.CONTENDERS`` or ``module:Class``; ``params`` is the JSON of a
:class:`~bench.rivals.peers.measure.Load`. The client prints one JSON row on standard output; the
output of the contender's libraries goes to standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from bench.rivals.catalogue import contender_class
from bench.rivals.contract import Unavailable
from bench.rivals.peers.measure import Load, Row, measure
from bench.rivals.processes import ONE_THREAD_EACH, become_subreaper, descendants, kill
from bench.rivals.workload import Workload


def measure_here(target: str, directory: str, load: Load) -> Row:
    """Measure one contender in this process, then end every process that it started."""
    scratch = Path(tempfile.mkdtemp(prefix="peer-"))
    try:
        workload = Workload.load(directory)
        return measure(contender_class(target)(workload, scratch), workload, load)
    except Unavailable as error:
        return {"status": "unavailable", "reason": str(error)}
    finally:
        kill(descendants(os.getpid()))
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    target, directory, params = arguments
    os.environ.update(ONE_THREAD_EACH)
    become_subreaper()
    signal.signal(signal.SIGTERM, _terminated)
    out = os.dup(1)
    os.dup2(2, 1)
    row = measure_here(target, directory, Load(**json.loads(params)))
    os.write(out, (json.dumps(row) + "\n").encode())
    return 0


def _terminated(number: int, frame: object) -> NoReturn:
    """End as after an error, so that every process is taken down."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
