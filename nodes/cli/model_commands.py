"""`swarm model …`: the commands of versions, from splitting to rolling back."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.access import REPLICAS_HELP
from nodes.cli.options import (
    URL,
    Cuts,
    EdgeLayers,
    Folder,
    Json,
    MeshName,
    ModelName,
    ModelVersion,
    Nats,
    SignWith,
    Stages,
)

app = typer.Typer(
    no_args_is_help=True, help="Split models, put them into the mesh, choose the version that runs."
)


@app.command("split")
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


@app.command("quantize")
def model_quantize(
    file: Annotated[str, typer.Argument(help="An ONNX file.")],
    output: Annotated[
        str, typer.Option("-o", "--output", help="The file to write; it must not exist yet.")
    ],
    calibrate: Annotated[
        str,
        typer.Option(
            help="An .npz file with an array for each input of the model, axis 0 the samples: they "
            "give the ranges of INT8. mesh:NAME takes inputs of NAME's traffic as they pass, "
            "with consent: `swarm model samples NAME on`."
        ),
    ] = "",
    samples: Annotated[
        int, typer.Option(help="So many inputs are taken with --calibrate mesh:NAME.")
    ] = 200,
    wait: Annotated[str, typer.Option(help="How long they may take to pass: 30s, 5m.")] = "1m",
    nats: Nats = URL,
    mesh: MeshName = "default",
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
        samples=samples,
        wait=wait,
        nats=nats,
        mesh=mesh,
    )
    raise typer.Exit(run_quantize(request, json_))


@app.command("inspect")
def model_inspect(folder: Folder, json_: Json = False) -> None:
    """Show the shards of a split model: layers, times, bytes of each cut. Checks the files."""
    from nodes.cli.model import run_inspect

    raise typer.Exit(run_inspect(folder, json_))


@app.command("push")
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
        str, typer.Option(help=REPLICAS_HELP + " Existing ones are raised, lanes too are made so.")
    ] = "auto",
    sign_with: SignWith = "",
    model_key: Annotated[
        str,
        typer.Option(
            help="Encrypt its files. file:PATH, env:NAME or command:CMD: where the key is, 64 "
            "hexadecimal digits; nodes need the same --model-key."
        ),
    ] = "",
    allow_codec: Annotated[
        str,
        typer.Option(
            help="Lossy codecs in which its features may travel over slow links, separated by "
            "commas: f16, i8, i6, i4. Their error is measured and kept in the manifest."
        ),
    ] = "",
    allow_result_codec: Annotated[
        str,
        typer.Option(
            help="The same for its results. Empty: results stay exact, in whatever its features "
            "travel."
        ),
    ] = "",
    samples: Annotated[
        str,
        typer.Option(
            help="An .npz file with an array for each input, axis 0 the sample: for the errors of "
            "these codecs. Empty: seeded values, which say less."
        ),
    ] = "",
    p99: Annotated[
        str, typer.Option(help="The model's objective: 99 % of answers come within: 20ms.")
    ] = "",
    errors: Annotated[
        str, typer.Option(help="The model's objective: no larger share of requests fails: 0.1%.")
    ] = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Put a split model into the mesh, signed. A model's first version serves at once."""
    from nodes.cli.codec_error import AllowedCodecs
    from nodes.cli.model import run_push
    from nodes.cli.objective import Wanted

    allowed = AllowedCodecs(allow_codec, allow_result_codec, samples)
    raise typer.Exit(
        run_push(
            folder,
            promote,
            lanes,
            replicas,
            sign_with,
            model_key,
            allowed,
            Wanted(p99, errors),
            nats,
            mesh,
            json_,
        )
    )


@app.command("list")
def model_list(nats: Nats = URL, mesh: MeshName = "default", json_: Json = False) -> None:
    """Show the models and versions in the mesh, and each version's share of traffic."""
    from nodes.cli.model import run_list

    raise typer.Exit(run_list(nats, mesh, json_))


@app.command("gc")
def model_gc(
    keep: Annotated[
        int, typer.Option(help="So many of the last versions of each model stay in any case.")
    ] = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")
    ] = False,
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Remove versions from the server that nothing serves, rolls out, pins or goes back to."""
    from nodes.cli.collecting import run_gc

    raise typer.Exit(run_gc(keep, dry_run, sign_with, nats, mesh, json_))


@app.command("promote")
def model_promote(
    model: Annotated[str, typer.Argument(help="NAME@VERSION.")],
    canary: Annotated[
        str,
        typer.Option(
            help="Let the version prove itself: it begins with this share of the traffic, as 10%."
        ),
    ] = "",
    guard: Annotated[
        str,
        typer.Option(
            help='What must hold, as "p99<20ms,errors<1%,agree>0.98": a breach rolls back by '
            "itself. Empty: nothing."
        ),
    ] = "",
    step: Annotated[
        str,
        typer.Option(
            help="So much more traffic, each time that the guards have held for so long; "
            "10%/1m when empty."
        ),
    ] = "",
    shadow: Annotated[
        str,
        typer.Option(
            help="The version also works on copies of this share of the other requests, as 5%; "
            "its answers are compared, and thrown away."
        ),
    ] = "",
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests without which a guard says nothing, and a step is not left; 50 when 0.",
        ),
    ] = 0,
    agree: Annotated[
        str,
        typer.Option(
            help="How --shadow compares answers: top-1 (when empty), exact, or relative:0.01."
        ),
    ] = "",
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Let a version serve all traffic, at once or by steps; nodes drain the old one afterwards."""
    from nodes.cli.rollout import RolloutWords, run_rollout

    words = RolloutWords(canary, guard, step, shadow, samples, agree)
    raise typer.Exit(run_rollout(model, words, sign_with, nats, mesh, json_))


@app.command("status")
def model_status(
    model: Annotated[str, typer.Argument(help="NAME.")],
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Show what serves, and how a rollout and its guards stand; exit 1 if it was rolled back."""
    from nodes.cli.rollout import run_model_status

    raise typer.Exit(run_model_status(model, nats, mesh, json_))


@app.command("pin")
def model_pin(
    model: Annotated[str, typer.Argument(help="NAME.")],
    agent: Annotated[str, typer.Argument(help="The agent, as its requests name it.")],
    version: Annotated[
        str, typer.Argument(help="The version that it keeps to; left out, it is pinned no more.")
    ] = "",
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Let an agent keep to one version, whatever the shares and rollouts are."""
    from nodes.cli.rollout import run_pin

    raise typer.Exit(run_pin(model, agent, version, sign_with, nats, mesh, json_))


@app.command("serve")
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


@app.command("slo")
def model_slo(
    model: Annotated[str, typer.Argument(help="NAME.")],
    p99: Annotated[str, typer.Option(help="99 % of answers are to come within: 20ms.")] = "",
    errors: Annotated[str, typer.Option(help="No larger share of requests may fail: 0.1%.")] = "",
    none: Annotated[bool, typer.Option("--none", help="Take the objective away.")] = False,
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Show or set a model's objective. Nodes that answer requests measure it, and tell."""
    from nodes.cli.objective import run_slo

    raise typer.Exit(run_slo(model, p99, errors, none, sign_with, nats, mesh, json_))


@app.command("samples")
def model_samples(
    model: Annotated[str, typer.Argument(help="NAME.")],
    allowed: Annotated[str, typer.Argument(help="on or off.")],
    sign_with: SignWith = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Allow, or forbid, to take inputs from a model's traffic to calibrate with; off at first."""
    from nodes.cli.model import run_samples

    raise typer.Exit(run_samples(model, allowed, sign_with, nats, mesh, json_))


@app.command("rollback")
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


@app.command("weights")
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
