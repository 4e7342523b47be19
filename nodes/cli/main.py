"""`swarm`: the command line. Commands import what they need when they run, so that
`swarm --help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.bench import register
from nodes.cli.settings import settings_callback

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run one neural network across a fleet of edge devices, over NATS.",
    context_settings={"auto_envvar_prefix": "SWARM"},
)
model_app = typer.Typer(no_args_is_help=True, help="Split models, and keep them in the mesh.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure, as ratios in one run.")
app.add_typer(model_app, name="model")
app.add_typer(bench_app, name="bench")
register(bench_app)

URL = "nats://127.0.0.1:4222"
Nats = Annotated[str, typer.Option(help="Server URLs, separated by commas.", envvar="SWARM_NATS")]
MeshName = Annotated[str, typer.Option(help="Name of the mesh.", envvar="SWARM_MESH")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
Config = Annotated[
    str, typer.Option(callback=settings_callback, is_eager=True, help="A TOML file of defaults.")
]


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=6, help="How long the stream runs.")] = 20.0,
    rate: Annotated[float, typer.Option(min=1, max=1000, help="Images a second.")] = 30.0,
    json_: Json = False,
) -> None:
    """The whole story on this machine: three shards, a fallback, a live edge, one kill."""
    from nodes.local.demo import run_demo

    raise typer.Exit(run_demo(seconds, rate, json_))


@app.command()
def up(
    model: Annotated[str, typer.Option(help="An ONNX file.")],
    stages: Annotated[int, typer.Option(min=1, max=64, help="Shards in the pipeline.")] = 3,
    cuts: Annotated[str, typer.Option(help="Tensors to cut after, separated by commas.")] = "",
    replicas: Annotated[int, typer.Option(min=1, max=16, help="Nodes per shard.")] = 1,
    fallback: Annotated[bool, typer.Option(help="Start a fallback node.")] = True,
    edge_layers: Annotated[int, typer.Option(min=0, help="Layers for the edge (stage 0).")] = 0,
    name: Annotated[str, typer.Option(help="Model name; the file's name by default.")] = "",
    version: Annotated[str, typer.Option(help="Model version.")] = "1",
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of a stage.")] = 1,
    mesh: MeshName = "default",
    nats: Annotated[
        str, typer.Option(help="Server URLs; an embedded server when empty.", envvar="SWARM_NATS")
    ] = "",
    json_: Json = False,
    config: Config = "",
) -> None:
    """A local mesh for any ONNX file, until Ctrl-C."""
    from nodes.local.up import UpOptions, run_up

    options = UpOptions(
        file=model,
        stages=stages,
        cuts=[c for c in cuts.split(",") if c],
        replicas=replicas,
        fallback=fallback,
        edge_layers=edge_layers,
        name=name,
        version=version,
        threads=threads,
        mesh=mesh,
        nats=nats,
    )
    raise typer.Exit(run_up(options, json_))


@app.command()
def infer(
    model: Annotated[str, typer.Argument(help="NAME or NAME@VERSION.")],
    input_: Annotated[str, typer.Option("--input", help="An .npz file of the inputs.")],
    output: Annotated[str, typer.Option("-o", "--output", help="Write outputs to .npz.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="How often; prints percentiles.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Requests at a time.")] = 1,
    budget: Annotated[str, typer.Option(help="Time for a request: 50ms, 2s.")] = "5s",
    delivery: Annotated[
        str, typer.Option(help="durable, or core: faster, nothing stored between stages.")
    ] = "durable",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
    config: Config = "",
) -> None:
    """Ask the mesh for one inference."""
    from nodes.cli.infer import run_infer

    raise typer.Exit(
        run_infer(model, input_, output, repeat, concurrency, budget, nats, mesh, delivery, json_)
    )


@app.command()
def status(nats: Nats = URL, mesh: MeshName = "default", json_: Json = False) -> None:
    """What every node says of itself, once."""
    from nodes.cli.status import run_status

    raise typer.Exit(run_status(nats, mesh, json_))


@app.command()
def top(nats: Nats = URL, mesh: MeshName = "default") -> None:
    """The same, live, until Ctrl-C."""
    from nodes.cli.status import run_top

    raise typer.Exit(run_top(nats, mesh))


@model_app.command("split")
def model_split(
    file: Annotated[str, typer.Argument(help="An ONNX file.")],
    output: Annotated[str, typer.Option("-o", "--output", help="A new folder.")],
    stages: Annotated[int, typer.Option(min=1, max=64, help="Shards in the pipeline.")] = 3,
    cuts: Annotated[str, typer.Option(help="Tensors to cut after, separated by commas.")] = "",
    edge_layers: Annotated[int, typer.Option(min=0, help="Layers for the edge (stage 0).")] = 0,
    edge_cut: Annotated[str, typer.Option(help="Tensor after which the edge's part ends.")] = "",
    lighter: Annotated[str, typer.Option(help="A lighter ONNX file for degraded answers.")] = "",
    name: Annotated[str, typer.Option(help="Model name; the file's name by default.")] = "",
    version: Annotated[str, typer.Option(help="Model version.")] = "1",
    json_: Json = False,
) -> None:
    """Cut an ONNX graph into shards, balanced by measured times."""
    from nodes.cli.model import run_split

    raise typer.Exit(
        run_split(file, output, stages, cuts, edge_layers, edge_cut, lighter, name, version, json_)
    )


@model_app.command("inspect")
def model_inspect(
    folder: Annotated[str, typer.Argument(help="A folder made by `swarm model split`.")],
    json_: Json = False,
) -> None:
    """Show the shards of a split model: layers, times, bytes of each cut."""
    from nodes.cli.model import run_inspect

    raise typer.Exit(run_inspect(folder, json_))


@model_app.command("push")
def model_push(
    folder: Annotated[str, typer.Argument(help="A folder made by `swarm model split`.")],
    promote: Annotated[bool, typer.Option(help="Let it serve all traffic at once.")] = False,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Put a split model into the mesh. A model's first version serves at once."""
    from nodes.cli.model import run_push

    raise typer.Exit(run_push(folder, promote, nats, mesh, json_))


@model_app.command("list")
def model_list(nats: Nats = URL, mesh: MeshName = "default", json_: Json = False) -> None:
    """The models and versions in the mesh, and which one serves."""
    from nodes.cli.model import run_list

    raise typer.Exit(run_list(nats, mesh, json_))


@model_app.command("promote")
def model_promote(
    model: Annotated[str, typer.Argument(help="NAME@VERSION.")],
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Let a version serve all traffic; nodes load it, then drain the old one."""
    from nodes.cli.model import run_promote

    raise typer.Exit(run_promote(model, nats, mesh, json_))


@model_app.command("rollback")
def model_rollback(
    model: Annotated[str, typer.Argument(help="NAME.")],
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Let the version before the present one serve again."""
    from nodes.cli.model import run_rollback

    raise typer.Exit(run_rollback(model, nats, mesh, json_))


def main() -> None:
    """Entry point of `swarm`."""
    app(prog_name="swarm")


if __name__ == "__main__":
    main()
