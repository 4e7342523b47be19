"""A node's settings: each is declared once, here or in the part that it belongs to.

A flag of `swarm-node`, a variable SWARM_<NAME> and a key of its TOML file follow from each
setting. `--help` imports no library: the objects that settings stand for are made at first use.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, TypeVar

from nodes.access import REPLICAS, REPLICAS_HELP, AccessOptions, read_replicas, who
from nodes.feature import NodeRole
from nodes.features import features
from nodes.place import ListenPlace
from nodes.placing.ways import CORE, CORE_JPEG, OFF, RAW, checked_mode, jpeg_quality
from nodes.roles import ROLES, SHARD
from nodes.settings import Setting, WrongSetting, check, setting, settings_of, tuning, writable
from swarm.addresses import checked
from swarm.errors import InvalidArgument
from swarm.fleet.priorities import FALLBACK, PRIMARY, STANDBY
from swarm.subjects import token

if TYPE_CHECKING:
    from shards.runtimes.device import DeviceChoice
    from swarm.gossip import GossipConfig
    from swarm.link import LinkOptions
    from swarm.model import ModelInfo
    from swarm.security.sealed import ModelKey
    from swarm.security.trusted_keys import TrustedKeys

# Lanes in a cluster of servers: on one of them, made anew on another one when that is lost; or on
# as many as keep keys and artifacts.
MOVED, REPLICATED = "moved", "replicated"
COVERS = ("fallback", "standby")  # roles that serve every stage of their model
STDOUT = "stdout"
LONGEST_ID = 64  # characters of a node's id

T = TypeVar("T")

work = partial(setting, "which stage of which model")
resource = partial(setting, "memory and devices")
request = partial(setting, "requests and lanes")
capture = partial(setting, "edge")
trusting = partial(setting, "trust")
figure = partial(setting, "figures and messages")


@dataclass(frozen=True)
class EdgeOptions:
    """How an edge captures. Raises `InvalidArgument`."""

    source: str = capture(
        "digits",
        "Where captures come from: URLs of rtsp://, udp:// (MPEG-TS) or http:// (MJPEG, a playlist "
        ".m3u8, a video, a picture that is asked for at --rate), /dev/video0, picamera2, video "
        "files, pictures, folders of them; several by commas, as NAME=URL where they have names. "
        "Or digits, or an .npz file with one array for each model input.",
        many=True,
    )
    rate: float = capture(
        0.0,
        "Captures a second, at the most; of a video by its own time. 0: as many as a camera or a "
        "file has; of digits and .npz 30, of a picture that is asked for 1.",
        least=0,
    )
    sink: str = capture(
        "stdout", "Where results go. stdout, or NAME for the subject swarm.<mesh>.results.<NAME>."
    )
    count: int = capture(0, "Captures after which the node ends; 0: never.", least=0)
    on_full: str = tuning(
        "auto",
        "edge: when captures come faster than answers. block: they wait, so that a file or a "
        "folder is played whole, as fast as it is answered. drop-oldest: they give way, and a "
        "video plays at its own pace. auto: what has an end waits (files, folders, digits and .npz "
        "with --count), what goes on for ever drops.",
        one_of=("auto", "drop-oldest", "block"),
    )
    placement: str = capture(
        OFF,
        "Which stages this edge computes itself, anew for each request. auto: by the fastest way "
        "that may be taken, as link, queues and devices are at present. edge: all of them. split: "
        "some; split@K: those before stage K. core: none. off: stage 0, if the model has one.",
    )
    allow_picture: bool = capture(
        False, "With --placement: the model's input may leave this device as it is, too."
    )
    placement_from: int = tuning(
        1,
        "edge: with --placement, features may leave from this stage's input on; earlier ones show "
        "more of the model's input.",
        least=1,
    )
    placement_memory: int = tuning(
        0,
        "edge: megabytes of model files that it holds for --placement, from the first stage on; "
        "0: as many as fit into its memory.",
        unit="MB",
        least=0,
    )
    send: str = tuning(
        RAW,
        "edge: how a camera's picture goes to the first stage. raw: as the model's input. "
        "jpeg:QUALITY (1-100, jpeg:85): as a JPEG of the model's size, where all nodes of that "
        "stage decode pictures; --placement auto chooses among both.",
    )
    queue: int = tuning(8, "edge: captures that may wait to be sent.", least=1)
    in_flight: int = tuning(8, "edge: requests in flight at a time.", least=1)

    def __post_init__(self) -> None:
        check(self)
        if self.sink != STDOUT:
            token(self.sink, "result name (--sink)")
        checked_mode(self.placement)
        jpeg_quality(self.send)
        if self.placement in (CORE, CORE_JPEG) and not self.allow_picture:
            raise InvalidArgument(
                f"--placement {self.placement} sends the model's input: it needs --allow-picture"
            )

    @property
    def places(self) -> bool:
        """Whether each request is placed."""
        return self.placement != OFF


@dataclass(frozen=True)
class NodeConfig:
    """The settings of one node. parts: the settings of features, which `of` gives. missed: nobody
    else does the work of this node, so it loads its first version at normal priority; others load
    at a low one, to leave the processor to nodes that serve. level: how far ONNX
    Runtime optimises a stage; at `basic` a shard computes the very bits of the whole model. Raises
    `InvalidArgument`.
    """

    role: str = work(
        None,
        "shard-1 … shard-N: serves one stage.",
    )
    model: str = work(
        "",
        "NAME: the version that the mesh desires; NAME@VERSION: this one. Empty: the one model "
        "that the mesh serves. A gateway needs none.",
    )
    standby: bool = work(
        False,
        "Of --role shard-K: take requests of its one stage only when the primary nodes leave some. "
        "(--role standby is another thing: a node for any stage that lacks nodes.)",
        negatable=True,
    )

    nats: str = who(
        "nats://127.0.0.1:4222",
        "URLs of a NATS server, or of some of one cluster, separated by commas.",
        spelled=("--nats", "--servers"),
    )
    mesh: str = who("default", "Name of the mesh; several share one server without meeting.")
    node: str = who(
        "",
        "Id of this node, unique in the mesh; made up when empty.",
        spelled=("--node",),
        name="node_id",
    )

    threads: int = resource(1, "Threads with which each stage computes.", least=1)
    device: str = resource(
        "auto",
        "Where the stages compute: auto (a GPU by CUDA if there is one, else the CPU), or a name "
        "that `swarm doctor` shows. Where it fails the CPU goes on.",
    )
    cores: str = resource("", "Numbers of the cores that this node stays on, as 2-3; empty: any.")
    state_dir: str = resource(
        "", "Folder for how long stages take, for the next start; empty: nowhere."
    )
    cache: str = resource(
        "",
        "Folder in which the nodes of this host keep artifacts, and from which their weights "
        "are mapped; empty: swarm in $XDG_CACHE_HOME or ~/.cache.",
    )
    no_cache: bool = resource(
        False, "Keep no artifacts: fetch them at each start, weights in memory."
    )
    cache_limit: int = tuning(
        4096,
        "Megabytes of the cache; artifacts unused for longest go first.",
        unit="MB",
        least=1,
        name="cache_mb",
    )
    device_options: str = tuning(
        "",
        "NAME=VALUE, separated by commas, for the device's library; tensorrt: precision=fp16, "
        "max_rows=16, workspace_mb=1024.",
    )

    run_limit: float = tuning(
        60000.0,
        "A run that no request bounds is ended after so long: one that tests or times a shard when "
        "it is loaded, and a self-test. 10m, 30s; a number alone is milliseconds.",
        unit="ms",
    )

    budget: float = request(
        5000.0,
        "For requests that name no budget; edge: for each capture. 5s, 250ms; a number alone is "
        "milliseconds.",
        unit="ms",
    )
    quota: float = request(
        0.0, "Requests a second that one client may send to this node; 0: any number.", least=0
    )
    nats_priority: str = tuning(
        "high",
        "Most priority of requests that plain NATS clients send to this node; a higher one is "
        "refused. The gateway's callers have bounds of their own.",
        one_of=("normal", "high"),
    )
    storage: str = request(
        "memory",
        "Where lanes keep requests. memory: a server restart loses them, "
        "and requesters ask again. file: they survive it.",
        one_of=("memory", "file"),
    )
    lanes: str = request(
        MOVED,
        "Where a cluster of servers keeps lanes. moved: one server; when it is lost, nodes make "
        "them anew on another one, and requesters ask again. replicated: as many as --replicas.",
        one_of=(MOVED, REPLICATED),
    )
    replicas: str = request("auto", REPLICAS_HELP, one_of=REPLICAS)
    gossip: str = request(
        "lan",
        "How often nodes gossip. local: one host. lan: one site. wan: slow or "
        "metered links; a crash is seen later.",
        one_of=("local", "lan", "wan"),
    )
    codec: str = request(
        "auto",
        "How tensors go by the server. none: as they are. f16, i8, i6, i4: in this codec, where "
        "the model's owner allowed it (results: in it, or in one that loses less). auto: in the "
        "one that the measured link makes pay, of those that the owner allowed; exactly, where "
        "none is.",
    )
    stored: bool = request(
        False,
        "Every message to and from this node goes through JetStream as bytes, also on one host, so "
        "that it can be audited and recorded. The same as --no-shm. (Fast mode stores nothing.)",
    )
    shm: bool = tuning(
        True, "Messages between nodes of one host go by shared memory and sockets, not the server."
    )
    weight: float = tuning(
        1.0,
        "Its share of the requests beside its peers', for routing policies that weigh nodes: 2 for "
        "one twice as fast as gossip can tell.",
        least=0.01,
        most=100,
    )
    credit: int = tuning(
        0,
        "Requests that a stage asks for ahead; a node that hangs holds them back. "
        "0: as the stage's pace needs.",
        least=0,
        most=256,
    )
    max_batch: int = tuning(4, "Requests that one run may compute together.", least=1, most=256)
    max_wait: float = tuning(
        0.5,
        "Milliseconds that a request may wait for others to be computed with.",
        unit="ms",
        least=0,
    )
    two_connections: str = tuning(
        "auto",
        "Whether models with messages of 16 KB or more have a connection of their own, so that "
        "gossip and small requests do not wait behind them on a slow link. on, off, or auto: where "
        "the server is further than 2 ms away when the node starts.",
    )
    congestion: str = tuning(
        "", "TCP congestion control: bbr, for links that lose packets. Empty: the system's."
    )

    mesh_key: str = trusting(
        "",
        "A file with the key that all nodes share, as `swarm keys new --mesh-key FILE` makes it; "
        "gossip without it is refused. A file that changes is read again.",
    )
    trust: str = trusting(
        "",
        "Files of the public keys whose models and desired state are taken, separated by commas; "
        "empty: swarm/trusted in $XDG_CONFIG_HOME or ~/.config, as `swarm keys` keeps it.",
    )
    allow_unsigned: bool = trusting(
        False,
        "Take models and desired state that nobody has signed: whoever may write to the mesh's "
        "store decides what this node runs.",
    )
    model_key: str = trusting(
        "",
        "Where the key of encrypted models is: file:PATH, env:NAME, or command:CMD, which prints "
        "it; 64 hexadecimal digits.",
    )
    identity: str = trusting(
        "", "File of the key pair with which it signs; made at the first start. Empty: none."
    )

    metrics: str = figure(
        "",
        "PORT, for this machine alone, or ADDRESS:PORT: serves figures to Prometheus there, at "
        "/metrics. Needs swarm-mesh[metrics]. Off when empty.",
        name="metrics_port",
    )
    health: str = tuning(
        "",
        "PATH of a socket where `swarm-node --check` asks whether this node is ready; its probes "
        "stand at /livez, /readyz and /startupz of the metrics port too. Empty: none.",
    )
    otlp: str = figure(
        "", "URL of an OpenTelemetry collector, which gets traces of requests. Empty: none."
    )
    trace_share: float = tuning(
        0.01,
        "Share of requests that are traced, where their caller has not decided.",
        least=0,
        most=1,
    )
    log_json: bool = figure(False, "Write messages as JSON, one object a line, on standard error.")
    verbose: bool = figure(
        False, "Log each detail, on standard error.", spelled=("--verbose", "-v")
    )
    json_events: bool = figure(
        False, "Print each change of the node's state as a JSON line.", spelled=("--json",)
    )

    access: AccessOptions = field(default_factory=AccessOptions)
    edge: EdgeOptions = field(default_factory=EdgeOptions)
    parts: tuple[object, ...] = ()
    missed: bool = False
    level: Literal["all", "basic"] = "all"

    def __post_init__(self) -> None:
        from swarm.transport.second_connection import checked_setting
        from swarm.wire.codec_choice import mode_of

        checked(self.nats)
        token(self.mesh, "mesh name (--mesh)")
        if self.node and len(token(self.node, "node id (--node)")) > LONGEST_ID:
            raise InvalidArgument(f"--node {self.node}: it has {LONGEST_ID} characters at most")
        if self.metrics:
            try:
                ListenPlace.of(self.metrics)
            except InvalidArgument as error:
                raise InvalidArgument(f"--metrics-port {error}") from None
        if self.role not in (roles := roles_of_nodes()) and self.stage < 1:
            *others, last = roles
            raise InvalidArgument(
                f"role {self.role!r}: it is shard-1, shard-2 …, {', '.join(others)} or {last}"
            )
        if self.role == "standby" and self.standby:
            raise InvalidArgument("--standby is for --role shard-K; --role standby needs none")
        if self.edge.places and self.role != "edge":
            raise InvalidArgument("--placement is for --role edge")
        mode_of(self.codec)
        checked_setting(self.two_connections)
        check(self)
        for feature in features():
            feature.check(self)
        if self.model:
            token(self.model_name, "model name (--model NAME[@VERSION])")
            if self.version:
                token(self.version, "version")

    def check_files(self) -> None:
        """Read what the settings name outside of them, which later uses take from memory, and make
        the folders that they name. Raises `SwarmError` and `DeviceError`."""
        for name in ("link", "placement", "trusted", "artifact_key"):
            getattr(self, name)
        writable(self.state_dir, "--state-dir")
        writable("" if self.no_cache else self.cache, "--cache")
        if self.congestion:
            _check_congestion(self.congestion)

    @cached_property
    def link(self) -> LinkOptions:
        """How the node connects."""
        from swarm.link import LinkOptions

        return LinkOptions(
            servers=self.nats,
            name=self.role,
            congestion=self.congestion,
            replicas=read_replicas(self.replicas),
            **self.access.options(),
        )

    @cached_property
    def placement(self) -> DeviceChoice:
        """The device of the stages. Raises `DeviceError`."""
        from shards.runtimes.device import DeviceChoice, parse_options

        return DeviceChoice(self.device, parse_options(self.device_options))

    @cached_property
    def trusted(self) -> TrustedKeys | None:
        """Keys whose manifests and desired state are taken, None for whatever is there. Raises
        `BadKey`."""
        from swarm.security.trusted_keys import TrustedKeys

        return None if self.allow_unsigned else TrustedKeys.of(self.trust)

    @cached_property
    def artifact_key(self) -> ModelKey | None:
        """Opens encrypted models, None where there are none. Raises `BadKey`."""
        from swarm.security.sealed import ModelKey

        return ModelKey.of(self.model_key)

    @property
    def gossip_config(self) -> GossipConfig:
        from swarm.gossip import LAN, LOCAL, WAN

        return {"local": LOCAL, "lan": LAN, "wan": WAN}[self.gossip]

    @property
    def cache_folder(self) -> str:
        """Of the artifacts that the nodes of this host share, "" for none."""
        from swarm.models.artifact_cache import default_folder

        return "" if self.no_cache else self.cache or str(default_folder())

    @property
    def shares_memory(self) -> bool:
        """Whether messages may go between processes of one host without the server."""
        return self.shm and not self.stored

    def of(self, kind: type[T]) -> T:
        """The settings of a feature, by their dataclass; its defaults where none were given."""
        found = [part for part in self.parts if isinstance(part, kind)]
        return found[0] if found else kind()

    @property
    def stage(self) -> int:
        """K of `shard-K`, else 0."""
        head, _, number = self.role.partition("-")
        return int(number) if head == "shard" and number.isdigit() else 0

    @property
    def _role(self) -> NodeRole:
        return roles_of_nodes().get(self.role, SHARD)

    @property
    def answers_requests(self) -> bool:
        """Whether any NATS client may ask this node for an inference."""
        return self.stage == 1 or self._role.answers

    @property
    def lacks_model(self) -> bool:
        """Whether it serves one model, and was not told which."""
        return not self.model and self._role.of_model

    @property
    def may_witness(self) -> bool:
        """Whether this node may look after the requests that others answer."""
        return self.stage == 1 or self._role.witnesses

    @property
    def model_name(self) -> str:
        return self.model.partition("@")[0]

    @property
    def version(self) -> str:
        """The pinned version, or '' to follow the mesh's desired state."""
        return self.model.partition("@")[2]

    @property
    def priority(self) -> int:
        if self.role == "fallback":
            return FALLBACK
        return STANDBY if self.standby or self.role == "standby" else PRIMARY

    def stages_of(self, info: ModelInfo) -> list[int]:
        """The stages that this node serves. Raises `InvalidArgument` when there are none."""
        if self.role in COVERS:
            return [stage.stage for stage in info.stages]
        if not self.stage:
            return []
        if self.stage > info.last:
            raise InvalidArgument(
                f"{info.model}@{info.version} has {info.last} stages: there is no {self.role}; "
                f"use shard-1 to shard-{info.last}"
            )
        return [self.stage]


def roles_of_nodes() -> dict[str, NodeRole]:
    """The roles that a node may have beside `shard-K`, by name: the core's, and the features'."""
    found = dict(ROLES)
    for feature in features():
        found |= feature.roles
    return found


def settings_of_nodes() -> list[Setting]:
    """All settings of `swarm-node`: those of the core, and of the features that are there."""
    about = " ".join(f"{name}: {role.about}" for name, role in roles_of_nodes().items())
    found = [
        replace(each, help=f"{each.help} {about}") if each.name == "role" else each
        for each in settings_of(NodeConfig)
    ]
    for feature in features():
        for kind in feature.settings:
            found += settings_of(kind)
    return sorted(found, key=lambda each: each.is_tuning)


def _check_congestion(name: str) -> None:
    from swarm.link.session import set_congestion

    try:
        with socket.socket() as probe:
            set_congestion(probe, name)
    except OSError as error:
        raise WrongSetting(
            f"--congestion {name}: {error.strerror or error}: `swarm doctor --host` says what this "
            "kernel has"
        ) from None
