"""`swarm`: the command line.

Each command imports its work when it runs, so that `swarm --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.access import add_access_flags
from nodes.cli.audit_commands import register as register_audit
from nodes.cli.auth_commands import register as register_auth
from nodes.cli.bench import register
from nodes.cli.keys_commands import register as register_keys
from nodes.cli.settings import settings_callback

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run one neural network across a fleet of edge devices, over NATS.",
    context_settings={"auto_envvar_prefix": "SWARM"},
)
model_app = typer.Typer(
    no_args_is_help=True, help="Split models, put them into the mesh, choose the version that runs."
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
app.add_typer(bench_app, name="bench")
register(bench_app)

URL = "nats://127.0.0.1:4222"
Nats = Annotated[
    str, typer.Option(help="NATS server URLs, separated by commas.", envvar="SWARM_NATS")
]
MeshName = Annotated[
    str,
    typer.Option(
        help="Name of the mesh; several share one server without meeting.", envvar="SWARM_MESH"
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document on standard output, for programs.",
        show_envvar=False,
    ),
]
Config = Annotated[
    str,
    typer.Option(
        callback=settings_callback,
        is_eager=True,
        show_envvar=False,
        help="A TOML file with these options as keys; flags and the environment win over it.",
    ),
]
Stages = Annotated[
    int,
    typer.Option(min=1, max=64, help="Shards to cut the model into, balanced by measured time."),
]
Cuts = Annotated[
    str,
    typer.Option(
        help="Names of the tensors to cut after, separated by commas; instead of --stages."
    ),
]
EdgeLayers = Annotated[
    int,
    typer.Option(
        min=0,
        help="Layers that run on the edge node (stage 0): it sends features instead of raw input. "
        "Features of early layers still tell who is in a picture.",
    ),
]
ModelName = Annotated[
    str, typer.Option(help="Name of the model in the mesh; the file's name when empty.")
]
ModelVersion = Annotated[
    str, typer.Option(help="Version of the model; a version in the mesh never changes.")
]
SignWith = Annotated[
    str,
    typer.Option(
        help="File of the key pair that signs it, for nodes that trust this key. Empty: the user's "
        "own, made at its first use (`swarm keys show`). none: it is not signed."
    ),
]
Folder = Annotated[str, typer.Argument(help="A folder made by `swarm model split`.")]


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
    json_: Json = False,
) -> None:
    """Show a takeover on this machine: three shards, a fallback, a live edge, one kill.

    Exits with 1 if an answer was lost or wrong. With --learn: exits with 1 if a target is missed.
    """
    if learn:
        from nodes.cli.demo_learn import run_learn_demo

        raise typer.Exit(run_learn_demo(seconds or 60.0, rate or 50.0, picture, json_))
    from nodes.cli.demo import run_demo

    raise typer.Exit(run_demo(seconds or 20.0, rate or 30.0, json_))


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
        edge_layers=edge_layers,
        name=name,
        version=version,
        threads=threads,
        mesh=mesh,
        nats=nats,
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


@app.command()
def top(nats: Nats = URL, mesh: MeshName = "default") -> None:
    """Show every node live, as `swarm status` does once, until Ctrl-C."""
    from nodes.cli.status import run_top

    raise typer.Exit(run_top(nats, mesh))


@model_app.command("split")
def model_split(
    file: Annotated[str, typer.Argument(help="An ONNX file.")],
    output: Annotated[
        str, typer.Option("-o", "--output", help="The folder to write; it must not exist yet.")
    ],
    stages: Stages = 3,
    cuts: Cuts = "",
    edge_layers: EdgeLayers = 0,
    edge_cut: Annotated[
        str,
        typer.Option(
            help="Name of the tensor after which the edge's layers end; instead of --edge-layers."
        ),
    ] = "",
    lighter: Annotated[
        str,
        typer.Option(
            help="A lighter ONNX file with the same inputs and outputs; the edge answers with it "
            "when the mesh would be late."
        ),
    ] = "",
    name: ModelName = "",
    version: ModelVersion = "1",
    json_: Json = False,
) -> None:
    """Cut an ONNX file into shards of equal measured time, and check them against the whole."""
    from nodes.cli.model import run_split

    raise typer.Exit(
        run_split(file, output, stages, cuts, edge_layers, edge_cut, lighter, name, version, json_)
    )


@model_app.command("quantize")
def model_quantize(
    file: Annotated[str, typer.Argument(help="An ONNX file.")],
    output: Annotated[
        str, typer.Option("-o", "--output", help="The file to write; it must not exist yet.")
    ],
    calibrate: Annotated[
        str,
        typer.Option(
            help="An .npz file with an array for each input of the model, axis 0 the samples: they "
            "give the ranges of INT8."
        ),
    ] = "",
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights and features in 8 bits; the default.")
    ] = False,
    dynamic: Annotated[
        bool,
        typer.Option("--dynamic", help="Matrix products in 8 bits, by ranges found in each run."),
    ] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Weights in 16 bits.")] = False,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Only the weights of matrix products.")
    ] = False,
    bits: Annotated[int, typer.Option(help="4 or 8: bits of a weight with --weights-only.")] = 8,
    per_channel: Annotated[
        bool, typer.Option(help="A scale for each channel of the weights, not one for all.")
    ] = True,
    ranges: Annotated[
        str,
        typer.Option(
            help="How INT8 finds ranges: min-max, entropy, percentile; auto is the most exact."
        ),
    ] = "auto",
    keep_accuracy: Annotated[
        str,
        typer.Option(
            help="An .npz file to judge with, best with an array `labels`: layers stay in floating "
            "point until no more than --max-drop is lost on it."
        ),
    ] = "",
    max_drop: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="The accuracy that may be lost, 0.01 is a point of a hundred; without labels, the "
            "relative distance of the outputs.",
        ),
    ] = 0.01,
    force: Annotated[
        bool, typer.Option("--force", help="Write the file even where it does not pay.")
    ] = False,
    json_: Json = False,
) -> None:
    """Make a model smaller and faster, and measure whether that pays and what it costs."""
    from nodes.cli.quantize import QuantizeRequest, run_quantize

    modes = {"int8": int8, "dynamic": dynamic, "fp16": fp16, "weights-only": weights_only}
    request = QuantizeRequest(
        file=file,
        output=output,
        calibrate=calibrate,
        keep_accuracy=keep_accuracy,
        modes=tuple(mode for mode, asked in modes.items() if asked),
        per_channel=per_channel,
        ranges=ranges,
        bits=bits,
        max_drop=max_drop,
        force=force,
    )
    raise typer.Exit(run_quantize(request, json_))


@model_app.command("inspect")
def model_inspect(folder: Folder, json_: Json = False) -> None:
    """Show the shards of a split model: layers, times, bytes of each cut. Checks the files."""
    from nodes.cli.model import run_inspect

    raise typer.Exit(run_inspect(folder, json_))


@model_app.command("push")
def model_push(
    folder: Folder,
    promote: Annotated[
        bool, typer.Option(help="Let this version serve all traffic at once.")
    ] = False,
    lanes: Annotated[
        str,
        typer.Option(
            help="memory or file: make the version's lanes now, and keep them there. Empty: its "
            "nodes make them; where the server knows users they may not, and this is `file`."
        ),
    ] = "",
    replicas: Annotated[
        int, typer.Option(min=1, max=5, help="Servers that keep the lanes that are made now.")
    ] = 1,
    sign_with: SignWith = "",
    model_key: Annotated[
        str,
        typer.Option(
            help="Encrypt its files. file:PATH, env:NAME or command:CMD: where the key is, 64 "
            "hexadecimal digits; nodes need the same --model-key."
        ),
    ] = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Put a split model into the mesh, signed. A model's first version serves at once."""
    from nodes.cli.model import run_push

    raise typer.Exit(
        run_push(folder, promote, lanes, replicas, sign_with, model_key, nats, mesh, json_)
    )


@model_app.command("list")
def model_list(nats: Nats = URL, mesh: MeshName = "default", json_: Json = False) -> None:
    """Show the models and versions in the mesh, and each version's share of traffic."""
    from nodes.cli.model import run_list

    raise typer.Exit(run_list(nats, mesh, json_))


@model_app.command("promote")
def model_promote(
    model: Annotated[str, typer.Argument(help="NAME@VERSION.")],
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Let a version serve all traffic; nodes load it, then drain the old one."""
    from nodes.cli.model import run_promote

    raise typer.Exit(run_promote(model, sign_with, nats, mesh, json_))


@model_app.command("serve")
def model_serve(
    model: Annotated[str, typer.Argument(help="NAME.")],
    state: Annotated[
        str,
        typer.Argument(
            help="The whole desired state, or a file of it: JSON with `serve` (versions and their "
            "shares), and with `sticky`, `policy`, `policy_options` if wanted."
        ),
    ],
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Put a desired state in force: shares of traffic for several versions, a routing policy."""
    from nodes.cli.model import run_serve

    raise typer.Exit(run_serve(model, state, sign_with, nats, mesh, json_))


@model_app.command("rollback")
def model_rollback(
    model: Annotated[str, typer.Argument(help="NAME; with --weights also NAME@VERSION.")],
    weights: Annotated[
        int,
        typer.Option(
            help="Bring this weight version of the model back on the whole fleet (0: the base); "
            "deltas that are under way are void."
        ),
    ] = -1,
    identity: Annotated[
        str,
        typer.Option(
            help="File of the key pair that signs a rollback of weights, made when missing; "
            "needed where nodes have a list of those who may teach."
        ),
    ] = "",
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Let the version before the present one serve all traffic again; or older weights."""
    if weights != -1:
        from nodes.cli.weights import run_weights_rollback

        raise typer.Exit(run_weights_rollback(model, weights, identity, nats, mesh, json_))
    from nodes.cli.model import run_rollback

    raise typer.Exit(run_rollback(model, sign_with, nats, mesh, json_))


@model_app.command("weights")
def model_weights(
    model: Annotated[
        str, typer.Argument(help="NAME for the version that the mesh serves, or NAME@VERSION.")
    ],
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Show a model's weight versions: accuracy, who minted them, who taught."""
    from nodes.cli.weights import run_weights

    raise typer.Exit(run_weights(model, nats, mesh, json_))


add_access_flags(app, model_app, auth_app, audit_app)


def main() -> None:
    """Entry point of `swarm`."""
    app(prog_name="swarm")


if __name__ == "__main__":
    main()
