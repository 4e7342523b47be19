"""Options that several commands share, and those of the commands right below `swarm`.

A dataclass is a set of options, see `nodes.cli.command`; the work gets it as one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodes.access import HELP, AccessOptions
from nodes.cli.command import Named, option, seldom
from swarm.addresses import checked
from swarm.errors import BadAddress, InvalidArgument

if TYPE_CHECKING:
    from swarm.link import LinkOptions

URL = "nats://127.0.0.1:4222"
THE_MESH = "The mesh"  # heading of the options that say which mesh, and how to reach it

NATS = "NATS server URLs, separated by commas."


def checked_servers(parameter: typer.CallbackParam, servers: str) -> str:
    """Raises `typer.BadParameter` for what can be no address, before the command does anything.
    "" stands for no server where that is the default."""
    try:
        if servers or parameter.default:
            checked(servers)
    except BadAddress as error:
        raise typer.BadParameter(str(error)) from None
    return servers


Nats = Annotated[
    str,
    typer.Option(
        help=NATS,
        envvar="SWARM_NATS",
        callback=checked_servers,
        rich_help_panel=THE_MESH,
    ),
]
MODEL = Named("model", version=True)
NODE = Named("node")
AGENT = Named("agent")
VERSION = Named("version")
DOMAIN = Named("JetStream domain")
MeshName = Annotated[
    str,
    Named("mesh"),
    typer.Option(
        help="Name of the mesh; several share one server without meeting.",
        envvar="SWARM_MESH",
        rich_help_panel=THE_MESH,
    ),
]
Json = Annotated[bool, typer.Option(help="Print JSON on standard output, for programs.")]
Input = Annotated[str, typer.Option(help="An .npz file with one array for each model input.")]
MODEL_KEY = (
    "Key of a model's encrypted files, 64 hexadecimal digits: file:PATH, env:NAME or command:CMD."
)
Model = Annotated[str, MODEL, typer.Argument(help="NAME, or NAME@VERSION.")]
ServedModel = Annotated[
    str, MODEL, typer.Argument(help="NAME for the version that the mesh serves, or NAME@VERSION.")
]

SOLE_MODEL = (
    "NAME for the version that the mesh serves, or NAME@VERSION; not needed where it serves one "
    "model."
)


def _access(name: str, hidden: bool = False) -> Any:
    return option(
        "",
        HELP[name],
        envvar=f"SWARM_{name.upper()}",
        show_default=False,
        rich_help_panel=THE_MESH,
        hidden=hidden,
    )


@dataclass(frozen=True)
class Servers:
    """Which servers, and how to reach them."""

    nats: Nats = URL
    credentials: str = _access("credentials")
    nkey: str = _access("nkey", hidden=True)
    tls_ca: str = _access("tls_ca")
    tls_cert: str = _access("tls_cert")
    tls_key: str = _access("tls_key")
    domain: Annotated[str, DOMAIN] = _access("domain")

    @property
    def access(self) -> AccessOptions:
        return AccessOptions.of(vars(self))

    def link(self, name: str) -> LinkOptions:
        """Of a connection with this name."""
        from swarm.link import LinkOptions

        return LinkOptions(servers=self.nats, name=name, **self.access.options())


@dataclass(frozen=True)
class Target(Servers):
    """The mesh that a command speaks with, and whether it prints JSON."""

    mesh: MeshName = "default"
    json: Json = False


@dataclass(frozen=True)
class SignedTarget(Target):
    """A mesh in which a command writes what nodes obey."""

    sign_with: str = option(
        "",
        "File of the key pair that signs it, for nodes that trust this key. Empty: the user's own, "
        "made at its first use (`swarm keys show`). none: it is not signed.",
    )


@dataclass(frozen=True)
class OwnServers(Target):
    """Of a command that has no servers where it is given none, or starts its own."""

    nats: Nats = ""


TASK_TEXTS = ("task", "labels", "decode", "outputs", "size", "fit", "colours", "normalise")


@dataclass(frozen=True, kw_only=True)
class Exemplified:
    """The sizes that a model is timed, proved and planned with, where it leaves them open. Without
    them they are chosen, and a line says which."""

    example: str = option(
        "",
        "An .npz file with an array for each input: the model is timed and proved with its first "
        "row.",
    )
    shape: str = option(
        "", "Shapes of inputs that it is timed with, as image=1x3x320x320, separated by commas."
    )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of --shape, by input. Raises `InvalidArgument`."""
        found = {}
        for part in (each for each in self.shape.split(",") if each):
            name, _, sizes = part.rpartition("=")
            dims = sizes.split("x")
            if not name or not all(dim.isdecimal() and 0 < int(dim) < 1 << 31 for dim in dims):
                raise InvalidArgument(f"--shape {part!r}: write INPUT=1x3x320x320")
            found[name] = tuple(map(int, dims))
        if found and self.example:
            raise InvalidArgument("give either --example or --shape, not both")
        return found

    def example_arguments(self) -> list[str]:
        """These options, for another command."""
        flags = ["--example", self.example] if self.example else []
        return [*flags, "--shape", self.shape] if self.shape else flags


@dataclass(frozen=True, kw_only=True)
class Splitting(Exemplified):
    """How an ONNX file is cut, and what it is called in the mesh."""

    stages: int = option(
        3, "Shards to cut the model into, balanced by measured time.", min=1, max=64
    )
    cuts: str = option(
        "", "Names of the tensors to cut after, separated by commas; instead of --stages."
    )
    edge_layers: int = option(
        0,
        "Layers that run on the edge node (stage 0): it sends features instead of raw input. "
        "Features of early layers still tell who is in a picture.",
        min=0,
    )
    name: Annotated[str, Named("model")] = option(
        "", "Name of the model in the mesh; the file's name when empty."
    )
    version: Annotated[str, VERSION] = option(
        "1", "Version of the model; in the mesh it never changes."
    )
    batch: str = seldom(
        "auto",
        "Whether requests share runs: auto where the graph shows that their rows stay apart, on by "
        "your word, off. Runs confirm auto and on.",
    )
    task: str = option(
        "",
        "What the model makes of a picture: detect, classify, segment, depth, read or "
        "embed. Then it takes pictures, and answers boxes, classes, text or a vector.",
    )
    labels: str = seldom("", "With --task: names of the classes, as cat,dog, or a file of lines.")
    bake: bool = seldom(
        True, "With --task: put its arithmetic into the graph: boxes travel, not scores."
    )
    decode: str = seldom("", "With --task: the model's head, where its shapes do not tell.")
    outputs: str = option(
        "",
        "The outputs that stay, separated by commas, or other tensors of the graph; the rest is "
        "left out. With --task: those that are read, where shapes do not tell.",
    )
    size: str = seldom("", "With --task: the model's picture, as 640x640, where the file says any.")
    fit: str = seldom("", "With --task: stretch, letterbox, corner or line: where a picture lies.")
    colours: str = seldom("", "With --task: rgb, bgr or gray.")
    normalise: str = seldom(
        "", "With --task: none, 0..1, -1..1, imagenet, or MEAN/STD of pixels, as 127/128."
    )
    threshold: float = seldom(-1.0, "With --task detect: scores above it count; -1: usual.")
    iou: float = seldom(-1.0, "With --task detect: of boxes that overlap more, one stays.")
    top: int = seldom(0, "With --task: the most boxes, or the most classes; 0: usual.")

    def task_arguments(self) -> list[str]:
        """The flags of `--task` and its options, for `swarm model split`."""
        if not self.task:
            return ["--outputs", self.outputs] if self.outputs else []
        flags = [] if self.bake else ["--no-bake"]
        for name in TASK_TEXTS:
            if value := getattr(self, name):
                flags += [f"--{name}", value]
        for name, number, usual in (
            ("threshold", self.threshold, -1),
            ("iou", self.iou, -1),
            ("top", self.top, 0),
        ):
            if number != usual:
                flags += [f"--{name}", str(number)]
        return flags


# --- of single commands -----------------------------------------------------------------------


@dataclass(frozen=True)
class DemoOptions:
    """Of `swarm demo`."""

    seconds: float | None = option(
        None, "How long images are streamed, in seconds; 20 when not given.", min=6
    )
    rate: float | None = seldom(None, "Images a second; 30 when not given.", min=1, max=1000)
    secure: bool = option(
        False,
        "With TLS, users and an encrypted model; certificates are rotated, and the killed "
        "shard's credentials revoked.",
    )
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class UpOptions(Splitting):
    """Of `swarm up`."""

    model: str = option(
        ..., "An ONNX file, a language model's folder, or `toy`, which comes with this package."
    )
    version: Annotated[str, VERSION] = option(
        "auto",
        "Version of the model; in the mesh it never changes. auto: the mesh's own version of the "
        "same file and options, else the next number.",
    )
    port: int | None = option(
        None, "Port of the embedded server; a free one when not given.", min=0, max=65535
    )
    replicas: int = option(1, "Nodes to start for each shard.", min=1, max=16)
    fallback: bool = option(True, "Start a fallback node, which takes over any shard that dies.")
    standby_nodes: int = seldom(
        0, "Nodes that take the stage that lacks nodes most.", min=0, max=16
    )
    autoscale: int = seldom(
        0,
        "Further nodes that may come and go with the load, for the stages that lack them.",
        min=0,
        max=64,
    )
    threads: int = seldom(1, "Threads with which each stage computes.", min=1)
    servers: int = option(1, "Embedded servers to start; several are one cluster.", min=1, max=5)
    secure: bool = option(
        False, "With TLS, and with credentials of its own for each process.", "--secure/--no-secure"
    )
    stored: bool = option(
        False, "Every hop goes through JetStream as bytes, as it does between hosts."
    )


@dataclass(frozen=True)
class InferOptions:
    """Of `swarm infer`."""

    input: str = option(
        "",
        "An .npz file with one array for each model input; or a picture, JPEG, PNG, BMP, WebP, "
        "GIF, TIFF or AVIF, where the model has a task.",
    )
    random: bool = option(False, "Send random values of the right shapes instead.")
    output: str = option("", "Write the last answer's arrays to this .npz.", "-o", "--output")
    repeat: int = option(1, "Requests to send; prints percentiles over all of them.", min=1)
    concurrency: int = option(1, "Requests in flight at a time.", min=1, max=4096)
    budget: str = option("5s", "Time after which a request fails: 50ms, 2s, 1m.")
    delivery: str = option(
        "durable",
        "durable: a stage that dies loses no request. fast: sooner, but a lost request is asked "
        "again by this client only.",
    )
    weights: int = seldom(0, "The least weight version of the answer; 0 for any.", min=0)
    explain: bool = option(False, "Show the last answer's time as a bar for each hop.")
    codec: str = seldom(
        "auto",
        "How the inputs go by the server, and the outputs come: auto, none, f16, i8, i6 or i4; "
        "what loses something only where the model's owner allows it.",
    )
