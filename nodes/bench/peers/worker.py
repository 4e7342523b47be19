"""The client process: ``python -m nodes.bench.peers.worker <contender> <workload> <params>``.

``contender`` is a name from ``contenders.CONTENDERS`` or ``module:Class``; ``params`` is the JSON
of a :class:`~nodes.bench.peers.measure.Load`. One JSON row is printed on standard output; whatever
the contender's libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from nodes.bench.peers.base import Contender, Unavailable
from nodes.bench.peers.contenders import CONTENDERS
from nodes.bench.peers.measure import Load, Row, measure
from nodes.bench.peers.processes import become_subreaper, descendants, kill
from nodes.bench.peers.workload import Workload

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""Set for the client and so for every stage: one thread each, nothing but the loopback."""


def resolve(target: str) -> type[Contender]:
    """The class behind a contender's name or ``module:Class``."""
    module, _, name = CONTENDERS.get(target, target).partition(":")
    if not name:
        raise ValueError(f"no contender {target!r}; known: {', '.join(CONTENDERS)}")
    try:
        loaded: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"not installed: {error.name}") from error
    found: type[Contender] = getattr(loaded, name)
    return found


def run(target: str, directory: str, load: Load) -> Row:
    """Measure one contender in this process; nothing that it started is left."""
    scratch = Path(tempfile.mkdtemp(prefix="peer-"))
    try:
        workload = Workload.load(directory)
        return measure(resolve(target)(workload, scratch), workload, load)
    except Unavailable as error:
        return {"status": "unavailable", "reason": str(error)}
    finally:
        kill(descendants(os.getpid()))
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    target, directory, params = arguments
    os.environ.update(ENVIRONMENT)
    become_subreaper()
    signal.signal(signal.SIGTERM, _terminated)
    out = os.dup(1)
    os.dup2(2, 1)
    row = run(target, directory, Load(**json.loads(params)))
    os.write(out, (json.dumps(row) + "\n").encode())
    return 0


def _terminated(number: int, frame: object) -> NoReturn:
    """End as on an error, so that everything is taken down."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
