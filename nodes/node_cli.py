"""`swarm-node`: one node of a mesh, in this process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import time

_STARTED = time.monotonic()
# Before numpy is imported: a node multiplies no matrices in numpy, and each BLAS thread has
# its own buffers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from typing import Annotated  # noqa: E402

import typer  # noqa: E402

from nodes.settings import settings_callback  # noqa: E402

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"auto_envvar_prefix": "SWARM"})
def node(
    role: Annotated[str, typer.Option(help="shard-1 … shard-N, fallback, gateway or edge.")],
    model: Annotated[
        str, typer.Option(help="NAME, or NAME@VERSION to pin one (not for a gateway).")
    ] = "",
    nats: Annotated[
        str, typer.Option(help="Server URLs, separated by commas.")
    ] = "nats://127.0.0.1:4222",
    mesh: Annotated[str, typer.Option(help="Name of the mesh.")] = "default",
    node_id: Annotated[str, typer.Option("--node", help="Node id; made up when empty.")] = "",
    standby: Annotated[bool, typer.Option(help="Serve only when no primary does.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of a stage.")] = 1,
    credit: Annotated[
        int, typer.Option(min=0, max=256, help="Messages in hand per lane; 0: what suits.")
    ] = 0,
    storage: Annotated[str, typer.Option(help="Of the lanes: memory or file.")] = "memory",
    max_batch: Annotated[int, typer.Option(min=1, max=256, help="Requests in one run.")] = 4,
    max_wait: Annotated[
        float, typer.Option(min=0, help="Milliseconds a request may wait for company.")
    ] = 0.5,
    budget: Annotated[
        float, typer.Option(help="Milliseconds for requests that name no budget.")
    ] = 5000.0,
    gossip: Annotated[str, typer.Option(help="Preset of the gossip: local, lan or wan.")] = "lan",
    mesh_key: Annotated[
        str, typer.Option(help="A file of 16 to 64 bytes that all nodes share; signs gossip.")
    ] = "",
    quota: Annotated[
        float, typer.Option(min=0, help="Requests a second that one agent may send; 0: any.")
    ] = 0.0,
    state_dir: Annotated[str, typer.Option(help="Folder of the node's durable state.")] = "",
    credentials: Annotated[str, typer.Option(help="A .creds file for the server.")] = "",
    source: Annotated[str, typer.Option(help="edge: digits, or an .npz file.")] = "digits",
    rate: Annotated[float, typer.Option(min=0.01, help="edge: captures a second.")] = 30.0,
    sink: Annotated[
        str, typer.Option(help="edge: stdout, or a name for swarm.<mesh>.results.<name>.")
    ] = "stdout",
    on_full: Annotated[
        str, typer.Option(help="edge: drop-oldest or block when the queue is full.")
    ] = "drop-oldest",
    queue: Annotated[int, typer.Option(min=1, help="edge: captures that may wait.")] = 8,
    in_flight: Annotated[int, typer.Option(min=1, help="edge: requests at a time.")] = 8,
    count: Annotated[int, typer.Option(min=0, help="edge: captures in all; 0: endless.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    json_events: Annotated[
        bool, typer.Option("--json", help="Print each change of state as a JSON line.")
    ] = False,
    config: Annotated[
        str, typer.Option(callback=settings_callback, is_eager=True, help="A TOML file.")
    ] = "",
) -> None:
    """Run one node. Each option is also SWARM_<NAME> in the environment, or a key in --config.

    The node waits, with a message, for a server or a model that is not there yet. SIGTERM or
    Ctrl-C drains it: it finishes what it has begun and gives the rest back.
    """
    from nodes.config import NodeConfig, gossip_preset, read_mesh_key
    from nodes.edge import EdgeOptions
    from nodes.process import run_node
    from swarm.errors import SwarmError
    from swarm.link import LinkOptions

    try:
        settings = NodeConfig(
            role=role,
            model=model,
            mesh=mesh,
            link=LinkOptions(
                servers=tuple(nats.split(",")), name=role, credentials=credentials or None
            ),
            node=node_id,
            standby=standby,
            threads=threads,
            credit=credit,
            storage=storage,
            max_batch=max_batch,
            max_wait=max_wait / 1e3,
            budget=budget / 1e3,
            gossip=gossip_preset(gossip),
            mesh_key=read_mesh_key(mesh_key),
            quota=quota,
            state_dir=state_dir,
        )
        edge = EdgeOptions(
            source=source,
            rate=rate,
            sink=sink,
            on_full=on_full,
            queue=queue,
            in_flight=in_flight,
            count=count,
            budget=budget / 1e3,
        )
    except SwarmError as error:
        typer.echo(f"swarm-node: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(run_node(settings, edge, verbose, json_events, _STARTED))


def main() -> None:
    """Entry point of `swarm-node`."""
    app(prog_name="swarm-node")


if __name__ == "__main__":
    main()
