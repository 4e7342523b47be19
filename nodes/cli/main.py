"""`swarm`: the command line.

Each command imports its work when it runs, so that `swarm --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.access import add_access_flags
from nodes.cli.audit_commands import register as register_audit
from nodes.cli.auth_commands import register as register_auth
from nodes.cli.bench import register as register_bench
from nodes.cli.keys_commands import register as register_keys
from nodes.cli.model_commands import app as model_app
from nodes.cli.options import (
    URL,
    Config,
    Cuts,
    EdgeLayers,
    Json,
    MeshName,
    ModelName,
    ModelVersion,
    Nats,
    SignWith,
    Stages,
)
from nodes.cli.site_commands import register as register_site

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run one neural network across a fleet of edge devices, over NATS.",
    context_settings={"auto_envvar_prefix": "SWARM"},
)
bench_app = typer.Typer(
    no_args_is_help=True,
    help="Measure the mesh beside other systems in one run: ratios hold across machines.",
)
auth_app = typer.Typer(
    no_args_is_help=True, help="Who may do what: keys, credentials, a server's configuration."
)
app.add_typer(model_app, name="model")
app.add_typer(auth_app, name="auth")
register_auth(auth_app)
audit_app = typer.Typer(
    no_args_is_help=True, help="Who asked what, with which outcome; was the record changed?"
)
app.add_typer(audit_app, name="audit")
register_audit(audit_app)
keys_app = typer.Typer(
    no_args_is_help=True, help="Whose models nodes take: the user's own key, and the trusted ones."
)
app.add_typer(keys_app, name="keys")
register_keys(keys_app)
site_app = typer.Typer(
    no_args_is_help=True, help="What a linked site stores while it is cut off; see `swarm submit`."
)
app.add_typer(site_app, name="site")
register_site(app, site_app)
app.add_typer(bench_app, name="bench")
register_bench(bench_app)


def _tell_version(asked: bool) -> None:
    if asked:
        from swarm import __version__

        typer.echo(f"swarm {__version__}")
        raise typer.Exit


@app.callback()
def swarm_(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_tell_version,
            is_eager=True,
            show_envvar=False,
            help="Print the version, and end.",
        ),
    ] = False,
) -> None:
    """Run one neural network across a fleet of edge devices, over NATS."""


@app.command()
def profile(
    model: Annotated[
        str, typer.Argument(help="NAME for the version that the mesh serves, or NAME@VERSION.")
    ],
    seconds: Annotated[float, typer.Option(min=1, help="How long to look, in seconds.")] = 30.0,
    probes: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Traced requests a second of this command's own, beside live traffic; 0: none.",
        ),
    ] = 2.0,
    input_: Annotated[
        str,
        typer.Option(
            "--input", help="An .npz file for the probes; random without.", show_envvar=False
        ),
    ] = "",
    plot: Annotated[str, typer.Option(help="Write a figure to this .png or .svg.")] = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Where a model's milliseconds go under live traffic, stage by stage, and what to do next."""
    from nodes.cli.profile import run_profile

    raise typer.Exit(run_profile(model, seconds, probes, input_, plot, nats, mesh, json_))


@app.command()
def doctor(json_: Json = False) -> None:
    """What this machine can run models on, what it lacks, and what to install."""
    from nodes.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(json_))


@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            min=6,
            help="How long images are streamed, in seconds; 20 when not given, 60 with --learn.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1, max=1000, help="Images a second; 30 when not given, 50 with --learn."),
    ] = None,
    learn: Annotated[
        bool,
        typer.Option(
            "--learn",
            help="Another story: eight nodes with two or three digits each learn all ten, while "
            "the pipeline serves what they learn.",
        ),
    ] = False,
    picture: Annotated[
        str,
        typer.Option(
            help="With --learn: the PNG of the plot, where matplotlib is installed; empty: none."
        ),
    ] = "swarm-demo-learn.png",
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With TLS, users and an encrypted model; certificates are rotated, and the killed "
            "shard's credentials revoked.",
        ),
    ] = False,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Show the mesh in a browser too; without --learn the nodes and the page stay "
            "until Ctrl-C.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Show a takeover on this machine: three shards, a fallback, a live edge, one kill.

    Exits with 1 if an answer was lost or wrong, or a protection of --secure did not hold. With
    --learn: exits with 1 if a target is missed.
    """
    if learn and secure:
        raise typer.BadParameter("--learn and --secure are two stories: give one of them")
    if learn:
        from nodes.demo.learn import run_learn_demo

        raise typer.Exit(run_learn_demo(seconds or 60.0, rate or 50.0, picture, json_, dashboard))
    from nodes.demo.demo import run_demo

    raise typer.Exit(run_demo(seconds or 20.0, rate or 30.0, secure, json_, dashboard))


@app.command()
def up(
    model: Annotated[str, typer.Option(help="An ONNX file.")],
    stages: Stages = 3,
    cuts: Cuts = "",
    replicas: Annotated[
        int, typer.Option(min=1, max=16, help="Nodes to start for each shard.")
    ] = 1,
    fallback: Annotated[
        bool, typer.Option(help="Start a fallback node, which takes over any shard that dies.")
    ] = True,
    standby_nodes: Annotated[
        int, typer.Option(min=0, max=16, help="Nodes that take the stage that lacks nodes most.")
    ] = 0,
    edge_layers: EdgeLayers = 0,
    name: ModelName = "",
    version: ModelVersion = "1",
    threads: Annotated[
        int, typer.Option(min=1, help="Threads with which each stage computes.")
    ] = 1,
    mesh: MeshName = "default",
    nats: Annotated[
        str,
        typer.Option(
            help="NATS server URLs; an embedded server on a free port when empty.",
            envvar="SWARM_NATS",
        ),
    ] = "",
    servers: Annotated[
        int,
        typer.Option(min=1, max=5, help="Embedded servers to start; several are one cluster."),
    ] = 1,
    secure: Annotated[
        bool,
        typer.Option(help="With TLS, and with credentials of its own for each process."),
    ] = False,
    stored: Annotated[
        bool,
        typer.Option(
            "--stored", help="Every hop goes through JetStream as bytes, as it does between hosts."
        ),
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Record who asked what, with which outcome.")
    ] = False,
    json_: Json = False,
    config: Config = "",
) -> None:
    """Split an ONNX file and run it as a mesh on this machine, until Ctrl-C."""
    from nodes.cli.up import UpOptions, run_up

    options = UpOptions(
        file=model,
        stages=stages,
        cuts=[c for c in cuts.split(",") if c],
        replicas=replicas,
        fallback=fallback,
        standby_nodes=standby_nodes,
        edge_layers=edge_layers,
        name=name,
        version=version,
        threads=threads,
        mesh=mesh,
        nats=nats,
        servers=servers,
        secure=secure,
        stored=stored,
        audit=audit,
    )
    raise typer.Exit(run_up(options, json_))


@app.command()
def infer(
    model: Annotated[
        str, typer.Argument(help="NAME for the version that the mesh serves, or NAME@VERSION.")
    ],
    input_: Annotated[
        str,
        typer.Option(
            "--input", help="An .npz file with one array for each model input.", show_envvar=False
        ),
    ] = "",
    random: Annotated[
        bool, typer.Option("--random", help="Send random values of the right shapes instead.")
    ] = False,
    output: Annotated[
        str, typer.Option("-o", "--output", help="Write the last answer's arrays to this .npz.")
    ] = "",
    repeat: Annotated[
        int, typer.Option(min=1, help="Requests to send; prints percentiles over all of them.")
    ] = 1,
    concurrency: Annotated[
        int, typer.Option(min=1, max=4096, help="Requests in flight at a time.")
    ] = 1,
    budget: Annotated[
        str, typer.Option(help="Time after which a request fails: 50ms, 2s, 1m.")
    ] = "5s",
    delivery: Annotated[
        str,
        typer.Option(
            help="durable: a stage that dies loses no request. fast: sooner, but a lost request "
            "is asked again by this client only."
        ),
    ] = "durable",
    weights: Annotated[
        int, typer.Option(min=0, help="The least weight version of the answer; 0 for any.")
    ] = 0,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show the last answer's time as a bar for each hop."),
    ] = False,
    codec: Annotated[
        str,
        typer.Option(
            help="How the inputs go by the server, and the outputs come: auto, none, f16, i8, i6 "
            "or i4; what loses something only where the model's owner allows it."
        ),
    ] = "auto",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
    config: Config = "",
) -> None:
    """Ask the mesh for one inference, and show where its time went."""
    from nodes.cli.infer import run_infer

    raise typer.Exit(
        run_infer(
            model,
            input_,
            random,
            output,
            repeat,
            concurrency,
            budget,
            nats,
            mesh,
            delivery,
            json_,
            weights,
            codec,
            explain,
        )
    )


@app.command()
def teach(
    model: Annotated[
        str, typer.Argument(help="NAME, or NAME@VERSION: of the model that a learner here trains.")
    ],
    input_: Annotated[
        str,
        typer.Option(
            "--input",
            help="An .npz file with one array for each model input; axis 0 counts the samples.",
            show_envvar=False,
        ),
    ],
    labels: Annotated[
        str,
        typer.Option(
            help="An .npz or .npy file with one array: a class from 0 on for each sample.",
            show_envvar=False,
        ),
    ],
    node: Annotated[
        str, typer.Option(help="Id of the learner, where several run on this host.")
    ] = "",
    test: Annotated[
        bool,
        typer.Option(
            "--test", help="Measure the learner's accuracy on the samples; it keeps none of them."
        ),
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="Time that the learner may take: 500ms, 60s.")
    ] = "60s",
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Give labelled samples to the learner on this host. They never leave it."""
    from nodes.cli.teach import run_teach

    raise typer.Exit(run_teach(model, input_, labels, node, test, timeout, mesh, json_))


@app.command()
def record(
    model: Annotated[
        str, typer.Argument(help="NAME for the version that the mesh serves, or NAME@VERSION.")
    ],
    for_: Annotated[str, typer.Option("--for", help="How long: 30s, 10m.")] = "1m",
    share: Annotated[
        float, typer.Option(help="Share of the requests, by a hash of their ids: 0.01 is 1 %.")
    ] = 1.0,
    max_hours: Annotated[
        float, typer.Option(min=0.01, help="Hours that recorded requests are kept.")
    ] = 24.0,
    max_mb: Annotated[
        int, typer.Option(min=1, help="Megabytes of recorded requests; the oldest go first.")
    ] = 256,
    again: Annotated[
        bool, typer.Option("--again", help="Take over from a recording that was killed.")
    ] = False,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Keep requests and the features at each cut, payloads included, for `swarm replay`."""
    from nodes.cli.recording import run_record

    raise typer.Exit(run_record(model, for_, share, max_hours, max_mb, again, nats, mesh, json_))


@app.command()
def replay(
    id_: Annotated[
        str,
        typer.Argument(metavar="[ID]", help="One request, as its answer or `swarm audit` says."),
    ] = "",
    since: Annotated[str, typer.Option(help="All requests of the last 5m, 2h, 1d.")] = "",
    version: Annotated[
        str, typer.Option(help="Run them with this version instead, and compare the answers.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Only requests of NAME, or NAME@VERSION; of any when empty.")
    ] = "",
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest deviation that counts as equal; 0: equal bits.")
    ] = 0.0,
    model_key: Annotated[
        str,
        typer.Option(help="As for swarm-node: opens encrypted models.", envvar="SWARM_MODEL_KEY"),
    ] = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Run recorded requests again, off the serving path, and compare hop by hop.

    Exits with 0 where all is equal, with 1 where something differs."""
    from nodes.cli.recording import run_replay

    raise typer.Exit(
        run_replay(model, id_, since, version, tolerance, model_key, nats, mesh, json_)
    )


@app.command()
def status(nats: Nats = URL, mesh: MeshName = "default", json_: Json = False) -> None:
    """Show every node once: state, requests, latencies, memory. Exits with 1 if none answers."""
    from nodes.cli.status import run_status

    raise typer.Exit(run_status(nats, mesh, json_))


@app.command("metrics-exporter")
def metrics_exporter(
    port: Annotated[
        str,
        typer.Option(help="PORT, for this machine alone, or ADDRESS:PORT, for Prometheus."),
    ] = "9464",
    most_nodes: Annotated[
        int, typer.Option(min=1, max=100_000, help="Nodes that are told of at a time.")
    ] = 1000,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Serve the figures of the whole fleet to Prometheus, from status subjects, until Ctrl-C."""
    from nodes.cli.exporter import run_exporter

    raise typer.Exit(run_exporter(port, most_nodes, nats, mesh, json_))


@app.command()
def drain(
    node: Annotated[
        str, typer.Argument(help="Its id, or a part of it that no other living node has.")
    ],
    wait: Annotated[bool, typer.Option(help="Until it has left.")] = True,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Have a node finish what it has begun, give back the rest, and end: as SIGTERM does.

    Under rights only an operator may. A supervisor that starts ended nodes again, as that of
    `swarm up` does, starts this one too."""
    from nodes.cli.drain import run_drain

    raise typer.Exit(run_drain(node, wait, nats, mesh, json_))


@app.command()
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Show it once, as `swarm status` does.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="A table without keys, as where textual is missing.")
    ] = False,
    nats: Nats = URL,
    mesh: MeshName = "default",
) -> None:
    """Show the fleet live, until q: nodes, stages, rates, latencies, events. s sorts, / filters,
    Enter shows a node, e all events."""
    from nodes.cli.top import run_top

    raise typer.Exit(run_top(nats, mesh, once, plain))


@app.command()
def dashboard(
    host: Annotated[
        str, typer.Option(help="Address to serve the page at; others than loopback need TLS.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")
    ] = 8321,
    https_cert: Annotated[
        str, typer.Option(help="PEM file of the certificate with which the page is served.")
    ] = "",
    https_key: Annotated[str, typer.Option(help="PEM file of the key of --https-cert.")] = "",
    open_http: Annotated[
        bool,
        typer.Option(
            "--open-http", help="Serve others than this machine without TLS: all may read."
        ),
    ] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let who has the printed address drain nodes, promote and roll back, with this "
            "command's credentials; without it the page is only read.",
        ),
    ] = False,
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
    config: Config = "",
) -> None:
    """Show the fleet on one page, live, in any number of browsers, until Ctrl-C."""
    from nodes.cli.dashboard import DashboardOptions, run_dashboard

    options = DashboardOptions(
        host=host,
        port=port,
        https_cert=https_cert,
        https_key=https_key,
        open_http=open_http,
        allow_actions=allow_actions,
        sign_with=sign_with,
        nats=nats,
        mesh=mesh,
    )
    raise typer.Exit(run_dashboard(options, json_))


add_access_flags(app, model_app, auth_app, audit_app)


def main() -> None:
    """Entry point of `swarm`."""
    app(prog_name="swarm")


if __name__ == "__main__":
    main()
