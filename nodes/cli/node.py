"""`swarm-node`: one node of a mesh, in this process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
import time

_STARTED = time.monotonic()
# Before numpy is imported: a node multiplies no matrices in numpy, and each BLAS thread has
# its own buffers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Mapping, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from nodes.config import NodeConfig, settings_of_nodes  # noqa: E402
from nodes.features import features  # noqa: E402
from nodes.low_priority import MISSED, wait_for_low_priority_thread  # noqa: E402
from nodes.settings import built, parse  # noqa: E402
from nodes.terminal import any_encoding  # noqa: E402

USAGE = "swarm-node --role ROLE [--model NAME[@VERSION]] [--nats URL] [--mesh NAME] [OPTION …]"
ABOUT = """\
Run one node of a mesh. A flag wins over its environment variable SWARM_<NAME>, which wins over the
key in the file of --config, which wins over the default. Settings that are seldom set are not shown
here: nodes/settings.md has them all, and each is a flag too. `swarm-node --check [livez|readyz|
startupz] --health PATH` asks the node that was given this path, and exits with 0 for yes.

A node waits, with a message, for a server or a model that is not there yet. SIGTERM or Ctrl-C
drains it: it finishes what it has begun and gives the rest back. Exit codes: 0 drained, 1 cannot
serve as configured, 2 wrong setting, 70 ended by its own watchdog."""


def node(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one node; returns its exit code. Ends the program for a wrong setting."""
    if "--check" in arguments:
        return check(arguments, environment)
    values = parse("swarm-node", USAGE, ABOUT, settings_of_nodes(), arguments, environment)
    missed = MISSED in environment
    if missed:
        import_work()
    else:
        wait_for_low_priority_thread(import_work)
    return serve(values, missed)


def check(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Ask the node of this machine that was given the same `--health PATH`; 0 for yes."""
    from nodes.health.endpoint import asked
    from nodes.health.health import PROBES

    parser = argparse.ArgumentParser("swarm-node --check", description="Ask a node how it is.")
    parser.add_argument("--check", nargs="?", choices=PROBES, const="readyz", required=True)
    parser.add_argument("--health", default=environment.get("SWARM_HEALTH", ""))
    chosen = parser.parse_args(arguments)
    if not chosen.health:
        print("swarm-node: --check needs the node's --health PATH", file=sys.stderr)
        return 2
    verdict = asked(Path(chosen.health), chosen.check)
    print(verdict.reason)
    return 0 if verdict.ok else 1


def import_work() -> None:
    """All modules of a node: half a second of a core beside nodes that serve."""
    import nodes.edge.edge
    import nodes.life.node
    import nodes.process  # noqa: F401


def serve(values: Mapping[str, Any], missed: bool) -> int:
    """Run a node by the values of its settings, in their units; returns its exit code."""
    from nodes.cores import stay_on
    from nodes.event_loop import end_with_supervisor
    from nodes.process import run_node
    from shards.errors import DeviceError
    from swarm.errors import SwarmError

    end_with_supervisor()
    try:
        parts: tuple[object, ...] = tuple(
            built(kind, values) for each in features() for kind in each.settings
        )
        config = built(NodeConfig, values, missed=missed, parts=parts)
        stay_on(config.cores)
        config.check_files()
    except (SwarmError, DeviceError) as error:
        print(f"swarm-node: {error}", file=sys.stderr)
        return 2
    return run_node(config, _STARTED)


def main() -> None:
    """Entry point of `swarm-node`."""
    any_encoding()
    try:
        code = node(sys.argv[1:], os.environ)
    except KeyboardInterrupt:  # before the event loop handles signals
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    main()
