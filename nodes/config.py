"""A node's settings, and the limits that follow from them and from a model's manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nodes.learning.options import LearnConfig
from shards.runtimes.device import Placement
from swarm.errors import InvalidArgument, ResourceExhausted
from swarm.fleet.advertised import LEAST_WEIGHT, MOST_WEIGHT, is_weight
from swarm.fleet.priorities import FALLBACK, PRIMARY, STANDBY
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.flow.ack_wait import ack_wait_for
from swarm.gossip import LAN, LOCAL, WAN, GossipConfig
from swarm.link import Link, LinkOptions
from swarm.model import ModelInfo
from swarm.security.sealed import ModelKey
from swarm.security.signers import TrustedKeys
from swarm.subjects import token
from swarm.transport.lane import LaneOptions, depth_for
from swarm.transport.second_connection import setting_of
from swarm.wire.codec_choice import AUTO, mode_of

MOST_CREDIT = 32  # messages in hand for one lane
HELD_SECONDS = 0.005  # work that a node may hold beyond what it runs
HEADER_ROOM = 64 * 1024  # bytes for a message's header beside its tensors
# Lanes in a cluster of servers: on one of them, made anew on another one when that is lost; or on
# as many as keep keys and artifacts.
MOVED, REPLICATED = "moved", "replicated"
LEARNER = "learner"  # the role of a node that serves no stage
COVERS = ("fallback", WARM)  # they serve every stage of their model


@dataclass(frozen=True)
class NodeConfig:
    """role: `shard-K`, `fallback`, `standby`, `gateway`, `edge` or `learner`. model:
    NAME or NAME@VERSION.

    node: its id, '' for one that is made up. standby: of a shard, serve only while no primary does
    (another thing than the role `standby`, a node of the warm pool). threads:
    ONNX Runtime threads for one stage. credit: messages asked for and in hand per lane, 0 for a
    number that suits the stage (see `credit_of`). storage, lanes: of the lanes, `memory` or `file`,
    `moved` (one server keeps them; lost with it, they are made anew on another) or `replicated`;
    the node that makes a lane decides. max_batch,
    max_wait (seconds): micro-batching. budget: seconds for requests that name none. gossip: a
    preset. mesh_key: file of the key that all nodes share, '' for none; gossip without it is
    refused, and a file that changes is read again. quota:
    requests a second that one agent may send to this node, 0 for any number. state_dir: folder of
    the checkpoint, '' for none. cache, cache_limit: folder of the artifacts that the nodes of this
    host share, '' for none, and its bytes. shm: whether messages may go between processes of one
    host without the server. identity: file of the node's key pair, which is made when missing, ''
    for none. teachers: file of the public keys whose learned weights are taken, '' for all.
    trusted: keys whose manifests and desired state are taken, None for whatever is there.
    model_key: opens encrypted models, None where there are none. level:
    how far ONNX Runtime optimises a stage; at `basic` a shard computes the very bits of the whole
    model. learn: how this node learns; None where it does not, unless it has the role `learner`.
    audit: whether this node records requests. sites: whose stored requests a gateway forwards.
    metrics: PORT or ADDRESS:PORT where Prometheus
    scrapes this node, '' for nowhere. codec: how tensors go by the server
    (`swarm.wire.codec_choice.MODES`). two_connections: as of `swarm.Mesh`.
    placement: the device of its stages. weight: its share of the requests beside its peers', for
    routing policies that weigh nodes.
    otlp: URL of the collector of traces, '' for none; trace_share: of the requests that this node
    answers and whose caller has not decided.
    missed: nobody else does the work of this node, so its first load gives way to nobody. Raises
    `InvalidArgument`.
    """

    role: str
    model: str = ""
    mesh: str = "default"
    link: LinkOptions = field(default_factory=LinkOptions)
    node: str = ""
    standby: bool = False
    threads: int = 1
    credit: int = 0
    storage: str = "memory"
    lanes: str = MOVED
    max_batch: int = 4
    max_wait: float = 0.0005
    budget: float = 5.0
    gossip: GossipConfig = LAN
    mesh_key: str = ""
    quota: float = 0.0
    state_dir: str = ""
    cache: str = ""
    cache_limit: int = 4 << 30
    shm: bool = True
    audit: bool = False
    sites: tuple[str, ...] = ()
    metrics: str = ""
    missed: bool = False
    identity: str = ""
    teachers: str = ""
    trusted: TrustedKeys | None = None
    model_key: ModelKey | None = None
    learn: LearnConfig | None = None
    level: Literal["all", "basic"] = "all"
    codec: str = AUTO
    two_connections: str | bool = "auto"
    placement: Placement = field(default_factory=Placement)
    weight: float = 1.0
    otlp: str = ""
    trace_share: float = 0.01

    def __post_init__(self) -> None:
        token(self.mesh, "mesh name")
        if self.role not in (*COVERS, "gateway", "edge", LEARNER) and self.stage < 1:
            raise InvalidArgument(
                f"role {self.role!r}: it is shard-1, shard-2 …, fallback, standby, gateway, edge "
                "or learner"
            )
        if not is_weight(self.weight):
            raise InvalidArgument(
                f"--weight {self.weight}: it is {LEAST_WEIGHT} to {MOST_WEIGHT:.0f}"
            )
        if self.role == WARM and self.standby:
            raise InvalidArgument("--standby is for --role shard-K; --role standby needs none")
        if self.role == "gateway" and self.learn is not None:
            raise InvalidArgument("a gateway has no model of its own to learn: leave out --learn")
        for site in self.sites:
            token(site, "site (--site DOMAIN)")
        if self.sites and self.role != "gateway":
            raise InvalidArgument(
                "a gateway forwards what sites have stored: --role gateway --site …"
            )
        if self.role == LEARNER and self.learn is None:
            object.__setattr__(self, "learn", LearnConfig())
        mode_of(self.codec)
        setting_of(self.two_connections)
        if self.storage not in ("memory", "file"):
            raise InvalidArgument(f"--storage {self.storage!r}: it is memory or file")
        if self.lanes not in (MOVED, REPLICATED):
            raise InvalidArgument(f"--lanes {self.lanes!r}: it is {MOVED} or {REPLICATED}")
        if self.role != "gateway":
            token(self.model_name, "model name (--model NAME[@VERSION])")
            if self.version:
                token(self.version, "version")

    @property
    def stage(self) -> int:
        """K of `shard-K`, else 0."""
        head, _, number = self.role.partition("-")
        return int(number) if head == "shard" and number.isdigit() else 0

    @property
    def answers_requests(self) -> bool:
        """Whether any NATS client may ask this node for an inference."""
        return self.stage == 1 or self.role in (*COVERS, "gateway", "edge")

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
        return STANDBY if self.standby or self.role == WARM else PRIMARY

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


def lane_options(info: ModelInfo, config: NodeConfig) -> LaneOptions:
    """Depth and ack_wait of a model's lanes, from its measured stage times.

    The depth is for the budget of requests that name none, and follows the budgets in use later.
    Every node computes these from the manifest and that budget, so any node may make the lanes.
    """
    slowest = max(stage.compute_ms for stage in info.stages) / 1e3
    depth = depth_for(info, config.budget)
    # A manifest knows medians; the p99 of a busy device is a few times as long.
    ack_wait = ack_wait_for(slowest * 3)
    return LaneOptions(
        depth=depth.messages,
        stage_bytes=depth.stage_bytes,
        ack_wait=ack_wait,
        storage=config.storage,
        copies=1 if config.lanes == MOVED else 0,
    )


def credit_of(fixed: int, compute: float) -> tuple[int, int]:
    """(least, most) messages that a node asks for and has in hand, by a run's seconds.

    With long runs a node asks for one message ahead only: another node could have begun it. With
    short runs the credit grows, while messages wait, until it hides a round trip. While none wait
    it stays small: a node that hangs holds back every message that it has asked for, one ack_wait
    each. Behind a slow link the lane asks for fewer, by its own
    measurement (`swarm.transport.lane.way`).
    """
    if fixed:
        return fixed, fixed
    most = int(min(MOST_CREDIT, max(2, HELD_SECONDS / max(compute, 1e-6))))
    return min(4, most), most


def check_payload(info: ModelInfo, link: Link) -> None:
    """Raises `ResourceExhausted` when a cut does not fit into the server's messages."""
    for stage in info.stages:
        needed = stage.message_bytes + HEADER_ROOM
        if needed > link.max_payload:
            raise ResourceExhausted(
                f"stage {stage.stage} of {info.model} exchanges {stage.message_bytes} bytes, and "
                f"this server's max_payload is {link.max_payload}: set `max_payload: {needed}` "
                "in its configuration, or choose a smaller cut (`swarm model inspect`)"
            )


def gossip_preset(name: str) -> GossipConfig:
    """`local`, `lan` or `wan`. Raises `InvalidArgument`."""
    presets = {"local": LOCAL, "lan": LAN, "wan": WAN}
    if name not in presets:
        raise InvalidArgument(f"--gossip {name!r}: it is {', '.join(presets)}")
    return presets[name]
