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

from nodes.access import HELP as ACCESS_HELP  # noqa: E402
from nodes.access import REPLICAS_HELP, Access, read_replicas  # noqa: E402
from nodes.cli.flags import Flag, parse  # noqa: E402
from nodes.low_priority import MISSED, wait_for_low_priority_thread  # noqa: E402

USAGE = "swarm-node --role ROLE [--model NAME[@VERSION]] [--nats URL] [--mesh NAME] [OPTION …]"
ABOUT = """\
Run one node of a mesh. A flag wins over its environment variable SWARM_<NAME>, which wins over the
key in the file of --config, which wins over the default.

A node waits, with a message, for a server or a model that is not there yet. SIGTERM or Ctrl-C
drains it: it finishes what it has begun and gives the rest back. Exit codes: 0 drained, 1 cannot
serve as configured, 2 wrong setting, 70 ended by its own watchdog."""

FLAGS = (
    Flag(
        "role",
        None,
        "shard-1 … shard-N: serves one stage. fallback: serves every stage that has "
        "lost its nodes. standby: holds every stage warm, and takes the one that lacks nodes most, "
        "as its primary. gateway: answers requests for any model. edge: captures and asks. "
        "learner: only learns.",
    ),
    Flag(
        "model",
        "",
        "NAME: serves the version that the mesh desires. NAME@VERSION: this version "
        "only. A gateway needs none.",
    ),
    Flag(
        "nats",
        "nats://127.0.0.1:4222",
        "URLs of a NATS server, or of servers of one cluster, separated by commas. Others of the "
        "cluster are learned.",
        spelled=("--nats", "--servers"),
    ),
    Flag("mesh", "default", "Name of the mesh; several share one server without meeting."),
    Flag(
        "node_id",
        "",
        "Id of this node, unique in the mesh; made up when empty.",
        spelled=("--node",),
    ),
    Flag(
        "standby",
        False,
        "Of --role shard-K: take requests of its one stage only when the primary nodes leave some. "
        "(--role standby is another thing: a node for any stage that lacks nodes.)",
        negatable=True,
    ),
    Flag("threads", 1, "Threads with which each stage computes.", least=1),
    Flag(
        "device",
        "auto",
        "Where the stages compute: auto (a GPU by CUDA if there is one, else the CPU), or a name "
        "that `swarm doctor` shows. Where it fails the CPU goes on.",
    ),
    Flag(
        "device_options",
        "",
        "NAME=VALUE, separated by commas, for the device's library; tensorrt: precision=fp16, "
        "max_rows=16, workspace_mb=1024.",
    ),
    Flag(
        "weight",
        1.0,
        "This node's share of the requests beside its peers', for routing policies that weigh "
        "nodes: 2 for one twice as fast as gossip can tell. 0.01 to 100.",
    ),
    Flag("cores", "", "Numbers of the cores that this node stays on, as 2-3; empty: any."),
    Flag(
        "credit",
        0,
        "Requests that a stage asks for ahead; a node that hangs holds them back. "
        "0: as the stage's pace needs.",
        least=0,
        most=256,
    ),
    Flag(
        "storage",
        "memory",
        "Where lanes keep requests. memory: a server restart loses them, "
        "and requesters ask again. file: they survive it.",
    ),
    Flag(
        "lanes",
        "moved",
        "Where a cluster of servers keeps lanes. moved: one server; when it is lost, nodes make "
        "them anew on another one, and requesters ask again. replicated: as many as --replicas.",
    ),
    Flag("replicas", "auto", REPLICAS_HELP),
    Flag("max_batch", 4, "Requests that one run may compute together.", least=1, most=256),
    Flag(
        "max_wait",
        0.5,
        "Milliseconds that a request may wait for others to be computed with.",
        least=0,
    ),
    Flag(
        "budget", 5000.0, "Milliseconds for requests that name no budget; edge: for each capture."
    ),
    Flag(
        "gossip",
        "lan",
        "How often nodes gossip. local: one host. lan: one site. wan: slow or "
        "metered links; a crash is seen later.",
    ),
    Flag(
        "mesh_key",
        "",
        "A file with the key that all nodes share, as `swarm keys new --mesh-key FILE` makes it; "
        "gossip without it is refused. A file that changes is read again.",
    ),
    Flag(
        "trust",
        "",
        "Files of the public keys whose models and desired state are taken, separated by commas; "
        "empty: swarm/trusted in $XDG_CONFIG_HOME or ~/.config, as `swarm keys` keeps it.",
    ),
    Flag(
        "allow_unsigned",
        False,
        "Take models and desired state that nobody has signed: whoever may write to the mesh's "
        "store decides what this node runs.",
    ),
    Flag(
        "model_key",
        "",
        "Where the key of encrypted models is: file:PATH, env:NAME, or command:CMD, which prints "
        "it; 64 hexadecimal digits.",
    ),
    Flag(
        "quota",
        0.0,
        "Requests a second that one client may send to this node; 0: any number.",
        least=0,
    ),
    Flag(
        "state_dir",
        "",
        "Folder in which the node keeps how long its stages take, for its next "
        "start; empty: nowhere.",
    ),
    Flag(
        "cache",
        "",
        "Folder in which the nodes of this host keep artifacts, and from which their weights "
        "are mapped; empty: swarm in $XDG_CACHE_HOME or ~/.cache.",
    ),
    Flag("no_cache", False, "Keep no artifacts: fetch them at each start, weights in memory."),
    Flag(
        "cache_mb", 4096, "Megabytes of the cache; artifacts unused for longest go first.", least=1
    ),
    Flag(
        "shm",
        True,
        "Messages between nodes of one host go by shared memory and sockets; "
        "--no-shm, or --stored: all of them by the server.",
    ),
    Flag(
        "stored",
        False,
        "Every message to and from this node goes through JetStream as bytes, also on one host, so "
        "that it can be audited and recorded. The same as --no-shm. (Fast mode stores nothing.)",
    ),
    Flag(
        "codec",
        "auto",
        "How tensors go by the server. none: as they are. f16, i8, i6, i4: in this codec, where "
        "the model's owner allowed it (results: in it, or in one that loses less). auto: in the "
        "one that the measured link makes pay, of those that the owner allowed; exactly, where "
        "none is.",
    ),
    Flag(
        "two_connections",
        "auto",
        "Whether models with messages of 16 KB or more have a connection of their own, so that "
        "gossip and small requests do not wait behind them on a slow link. on, off, or auto: where "
        "the server is further than 2 ms away when the node starts.",
    ),
    Flag(
        "congestion",
        "",
        "TCP congestion control of what this node sends: bbr, where the kernel has it, for links "
        "that lose packets. Empty: the system's.",
    ),
    Flag(
        "audit",
        False,
        "Record who asked what, when, with which outcome: `swarm audit`. Hashes only, no payload.",
    ),
    Flag(
        "identity",
        "",
        "File of the node's key pair, with which it signs; made at the first start. Empty: none.",
    ),
    Flag(
        "teachers",
        "",
        "File with the public keys whose learned weights are taken, one a line; empty: all.",
    ),
    Flag(
        "learn",
        False,
        "Train the model's head beside the node's other work, with the samples that `swarm teach` "
        "brings, and exchange deltas with other learners.",
    ),
    Flag("learn_every", 1.0, "learning: seconds from one round to the next.", least=0.05),
    Flag(
        "mint_every",
        10.0,
        "learning: seconds from one weight version that all nodes serve to the next.",
        least=0.1,
    ),
    Flag(
        "delta_share",
        0.1,
        "learning: share of the weights that one delta carries.",
        least=0.0001,
        most=1,
    ),
    Flag("delta_bytes", 65536, "learning: bytes that one delta may have.", least=1024),
    Flag(
        "hostile",
        0.0,
        "learning: share of the neighbours that may lie; above 0 their pulls are clipped "
        "(0.25 holds one of four).",
        least=0,
        most=0.9,
    ),
    Flag(
        "private_noise",
        0.0,
        "learning: noise on gradients by their clipped length (DP-SGD); the status tells the "
        "epsilon. 0: none.",
        least=0,
    ),
    Flag(
        "private_clip",
        1.0,
        "learning: length that one sample's gradient is clipped to, with --private-noise.",
    ),
    Flag(
        "private_sampling",
        0.1,
        "learning: chance of each sample to be in a step, with --private-noise.",
    ),
    *(Flag(name, "", about) for name, about in ACCESS_HELP.items()),
    Flag(
        "otlp",
        "",
        "URL of an OpenTelemetry collector, as http://127.0.0.1:4318: the requests that this node "
        "answers are traced. Empty: none.",
    ),
    Flag(
        "trace_share",
        0.01,
        "Share of the requests that are traced, where their caller has not decided.",
        least=0,
        most=1,
    ),
    Flag(
        "log_json",
        False,
        "Write messages as JSON, one object a line, on standard error.",
    ),
    Flag(
        "source",
        "digits",
        "edge: where captures come from. digits, or an .npz file with one "
        "array for each model input.",
    ),
    Flag("rate", 30.0, "edge: captures a second.", least=0.01),
    Flag(
        "sink",
        "stdout",
        "edge: where results go. stdout, or NAME for the subject swarm.<mesh>.results.<NAME>.",
    ),
    Flag(
        "on_full", "drop-oldest", "edge: drop-oldest or block, when the queue of captures is full."
    ),
    Flag("queue", 8, "edge: captures that may wait to be sent.", least=1),
    Flag("in_flight", 8, "edge: requests in flight at a time.", least=1),
    Flag("count", 0, "edge: captures after which the node ends; 0: never.", least=0),
    Flag(
        "site",
        "",
        "gateway: sites (JetStream domains) whose submitted requests it brings to the mesh, and "
        "their answers back, separated by commas.",
    ),
    Flag(
        "metrics_port",
        "",
        "PORT, for this machine alone, or ADDRESS:PORT: serves figures to Prometheus there, at "
        "/metrics. Needs swarm-mesh[metrics]. Off when empty.",
    ),
    Flag("verbose", False, "Log each detail, on standard error.", spelled=("--verbose", "-v")),
    Flag(
        "json_events",
        False,
        "Print each change of the node's state as a JSON line.",
        spelled=("--json",),
    ),
)


def node(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one node; returns its exit code. Ends the program for a wrong setting."""
    settings = parse("swarm-node", USAGE, ABOUT, FLAGS, "SWARM_", arguments, environment)
    missed = MISSED in environment
    if missed:
        import_work()
    else:
        wait_for_low_priority_thread(import_work)
    return serve(settings, missed)


def _learns(settings: Mapping[str, Any]) -> bool:
    return bool(settings["learn"]) or settings["role"] == "learner"


def import_work() -> None:
    """All modules of a node: half a second of a core beside nodes that serve."""
    import nodes.edge.edge
    import nodes.life.node
    import nodes.process  # noqa: F401


def serve(settings: dict[str, Any], missed: bool) -> int:
    from nodes.config import NodeConfig, gossip_preset
    from nodes.edge.edge import EdgeOptions
    from nodes.event_loop import end_with_supervisor
    from nodes.learning.options import learn_config
    from nodes.life.cores import stay_on
    from nodes.logs import LogForm
    from nodes.process import run_node
    from shards.errors import DeviceError
    from shards.runtimes.device import Placement, parse_options
    from swarm.errors import SwarmError
    from swarm.link import LinkOptions
    from swarm.security.sealed import ModelKey
    from swarm.security.signers import TrustedKeys

    end_with_supervisor()
    try:
        stay_on(settings["cores"])
        config = NodeConfig(
            role=settings["role"],
            model=settings["model"],
            mesh=settings["mesh"],
            link=LinkOptions(
                servers=tuple(settings["nats"].split(",")),
                name=settings["role"],
                congestion=settings["congestion"],
                replicas=read_replicas(settings["replicas"]),
                **Access.of(settings).options(),
            ),
            node=settings["node_id"],
            standby=settings["standby"],
            threads=settings["threads"],
            weight=settings["weight"],
            credit=settings["credit"],
            storage=settings["storage"],
            lanes=settings["lanes"],
            max_batch=settings["max_batch"],
            max_wait=settings["max_wait"] / 1e3,
            budget=settings["budget"] / 1e3,
            gossip=gossip_preset(settings["gossip"]),
            mesh_key=settings["mesh_key"],
            quota=settings["quota"],
            state_dir=settings["state_dir"],
            cache=_cache(settings),
            cache_limit=settings["cache_mb"] * 1_000_000,
            shm=settings["shm"] and not settings["stored"],
            audit=settings["audit"],
            sites=tuple(each for each in settings["site"].split(",") if each),
            metrics=settings["metrics_port"],
            codec=settings["codec"],
            two_connections=settings["two_connections"],
            missed=missed,
            identity=settings["identity"],
            teachers=settings["teachers"],
            trusted=None if settings["allow_unsigned"] else TrustedKeys.of(settings["trust"]),
            model_key=ModelKey.of(settings["model_key"]),
            learn=learn_config(settings) if _learns(settings) else None,
            otlp=settings["otlp"],
            trace_share=settings["trace_share"],
            placement=Placement(settings["device"], parse_options(settings["device_options"])),
        )
        edge = EdgeOptions(
            source=settings["source"],
            rate=settings["rate"],
            sink=settings["sink"],
            on_full=settings["on_full"],
            queue=settings["queue"],
            in_flight=settings["in_flight"],
            count=settings["count"],
            budget=settings["budget"] / 1e3,
        )
    except (SwarmError, DeviceError) as error:
        print(f"swarm-node: {error}", file=sys.stderr)
        return 2
    form = LogForm(settings["verbose"], settings["log_json"])
    return run_node(config, edge, form, settings["json_events"], _STARTED)


def _cache(settings: dict[str, Any]) -> str:
    """The folder of the cache, '' for none."""
    from swarm.models.artifact_cache import default_folder

    return "" if settings["no_cache"] else settings["cache"] or str(default_folder())


def main() -> None:
    """Entry point of `swarm-node`."""
    try:
        code = node(sys.argv[1:], os.environ)
    except KeyboardInterrupt:  # before the event loop handles signals
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    main()
