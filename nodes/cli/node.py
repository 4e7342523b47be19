"""`swarm-node`: one node of a mesh, in this process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import sys
import time

_STARTED = time.monotonic()
# Before numpy is imported: a node multiplies no matrices in numpy, and each BLAS thread has
# its own buffers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Mapping, Sequence  # noqa: E402
from typing import Any  # noqa: E402

from nodes.cli.flags import Flag, parse  # noqa: E402
from nodes.life.low_priority import gently  # noqa: E402

USAGE = "swarm-node --role ROLE [--model NAME[@VERSION]] [--nats URL] [--mesh NAME] [OPTION …]"
ABOUT = """\
Run one node. Each option is also SWARM_<NAME> in the environment, or a key in --config.

The node waits, with a message, for a server or a model that is not there yet. SIGTERM or
Ctrl-C drains it: it finishes what it has begun and gives the rest back."""

FLAGS = (
    Flag("role", None, "shard-1 … shard-N, fallback, gateway or edge."),
    Flag("model", "", "NAME, or NAME@VERSION to pin one (not for a gateway)."),
    Flag("nats", "nats://127.0.0.1:4222", "Server URLs, separated by commas."),
    Flag("mesh", "default", "Name of the mesh."),
    Flag("node_id", "", "Node id; made up when empty.", spelled=("--node",)),
    Flag("standby", False, "Serve only when no primary does.", negatable=True),
    Flag("threads", 1, "Compute threads of a stage.", least=1),
    Flag("credit", 0, "Messages in hand per lane; 0: what suits.", least=0, most=256),
    Flag("storage", "memory", "Of the lanes: memory or file."),
    Flag("max_batch", 4, "Requests in one run.", least=1, most=256),
    Flag("max_wait", 0.5, "Milliseconds a request may wait for company.", least=0),
    Flag("budget", 5000.0, "Milliseconds for requests that name no budget."),
    Flag("gossip", "lan", "Preset of the gossip: local, lan or wan."),
    Flag("mesh_key", "", "A file of 16 to 64 bytes that all nodes share; signs gossip."),
    Flag("quota", 0.0, "Requests a second that one agent may send; 0: any.", least=0),
    Flag("state_dir", "", "Folder of the node's durable state."),
    Flag("shm", True, "Large tensors by shared memory where all are on this host."),
    Flag("credentials", "", "A .creds file for the server."),
    Flag("source", "digits", "edge: digits, or an .npz file."),
    Flag("rate", 30.0, "edge: captures a second.", least=0.01),
    Flag("sink", "stdout", "edge: stdout, or a name for swarm.<mesh>.results.<name>."),
    Flag("on_full", "drop-oldest", "edge: drop-oldest or block when the queue is full."),
    Flag("queue", 8, "edge: captures that may wait.", least=1),
    Flag("in_flight", 8, "edge: requests at a time.", least=1),
    Flag("count", 0, "edge: captures in all; 0: endless.", least=0),
    Flag("verbose", False, "Log more.", spelled=("--verbose", "-v")),
    Flag("json_events", False, "Print each change of state as a JSON line.", spelled=("--json",)),
)


def node(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one node as told; returns its exit code. Ends the program when told wrongly."""
    told = parse("swarm-node", USAGE, ABOUT, FLAGS, "SWARM_", arguments, environment)
    return _run(told)


def _import() -> None:
    import nodes.life.edge
    import nodes.life.node
    import nodes.life.process  # noqa: F401


def _run(told: dict[str, Any]) -> int:
    gently(_import)
    from nodes.life.config import NodeConfig, gossip_preset, read_mesh_key
    from nodes.life.edge import EdgeOptions
    from nodes.life.process import end_with_supervisor, run_node
    from swarm.errors import SwarmError
    from swarm.link import LinkOptions

    end_with_supervisor()
    try:
        settings = NodeConfig(
            role=told["role"],
            model=told["model"],
            mesh=told["mesh"],
            link=LinkOptions(
                servers=tuple(told["nats"].split(",")),
                name=told["role"],
                credentials=told["credentials"] or None,
            ),
            node=told["node_id"],
            standby=told["standby"],
            threads=told["threads"],
            credit=told["credit"],
            storage=told["storage"],
            max_batch=told["max_batch"],
            max_wait=told["max_wait"] / 1e3,
            budget=told["budget"] / 1e3,
            gossip=gossip_preset(told["gossip"]),
            mesh_key=read_mesh_key(told["mesh_key"]),
            quota=told["quota"],
            state_dir=told["state_dir"],
            shm=told["shm"],
        )
        edge = EdgeOptions(
            source=told["source"],
            rate=told["rate"],
            sink=told["sink"],
            on_full=told["on_full"],
            queue=told["queue"],
            in_flight=told["in_flight"],
            count=told["count"],
            budget=told["budget"] / 1e3,
        )
    except SwarmError as error:
        print(f"swarm-node: {error}", file=sys.stderr)
        return 2
    return run_node(settings, edge, told["verbose"], told["json_events"], _STARTED)


def main() -> None:
    """Entry point of `swarm-node`."""
    try:
        code = node(sys.argv[1:], os.environ)
    except KeyboardInterrupt:  # before there is a loop that takes it
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    main()
