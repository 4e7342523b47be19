"""The table of rights: every subject of the mesh, every call of JetStream, and who may.

In a subject stand for one token or a part of it: {mesh}; {model}; {stage}, the stage of a shard,
or each stage of a fallback; {next}, the stage behind it; {user}, the name of the user. `*` and `>`
are wildcards of NATS. (A wildcard stands for a whole token.)

The server checks the subject of a publish and of a subscription, and nothing else: not the reply
subject of a publish, and not what a consumer delivers. So no role has a right that is harmless
only by its reply subject: none may create streams or consumers but the operator, who may anyway
change everything. No role has `allow_responses`: a user who may answer anybody can send itself a
message, and name any subject as its reply.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """A user's role. `SHARD` is every shard behind the first, which also answers requests."""

    CLIENT = "client"
    REQUESTER = "requester"
    EDGE = "edge"
    JOIN = "join"
    SHARD_1 = "shard-1"
    SHARD = "shard-k"
    FALLBACK = "fallback"
    STANDBY = "standby"
    AUTO = "auto"
    GATEWAY = "gateway"
    LEARNER = "learner"
    DASHBOARD = "dashboard"
    UPDATER = "updater"
    OPERATOR = "operator"


ROLES = tuple(Role)
ABOUT = {
    Role.CLIENT: "asks for inferences and tokens, from an account of its own; sees nothing else",
    Role.REQUESTER: "asks by lanes and by fast mode; reads the registry and statuses",
    Role.EDGE: "captures, runs early stages, sends to others, answers requests; reads no features",
    Role.JOIN: "hears edges' results, asks the model that joins them, answers requests",
    Role.SHARD_1: "serves stage 1, answers requests",
    Role.SHARD: "serves stage k",
    Role.FALLBACK: "serves all stages of its model, answers requests",
    Role.STANDBY: "as a fallback; takes the stage that lacks its nodes",
    Role.AUTO: "as a fallback; serves the stages of its slot, proposes plans",
    Role.GATEWAY: "answers requests for any model",
    Role.LEARNER: "learns: exchanges weight deltas, writes weight versions",
    Role.DASHBOARD: "reads statuses, events, results, and which versions serve",
    Role.UPDATER: "brings a device to releases of the node software, and tells how far it is",
    Role.OPERATOR: "makes streams and consumers, pushes, promotes; asks for no inference",
}

# Seconds for which the server keeps the way back to a client that reads tokens: as long as an
# answer may take (`swarm.language.request.MOST_BUDGET`).
TOKENS_WITHIN = 600

EVERYBODY = frozenset(Role)
NOBODY: frozenset[Role] = frozenset()
SHARDS = frozenset({Role.SHARD_1, Role.SHARD})
COVERS = frozenset({Role.FALLBACK, Role.STANDBY, Role.AUTO})  # they serve any stage of their model
SERVERS = SHARDS | COVERS
NODES = SERVERS | {Role.EDGE, Role.JOIN, Role.GATEWAY, Role.LEARNER}
ANSWERERS = COVERS | {Role.EDGE, Role.JOIN, Role.SHARD_1, Role.GATEWAY}
REQUESTERS = ANSWERERS | {Role.REQUESTER}
SUBMITTERS = frozenset({Role.REQUESTER, Role.EDGE})
WATCHERS = frozenset({Role.REQUESTER, Role.DASHBOARD, Role.OPERATOR})
CONFIG_READERS = NODES | {Role.REQUESTER, Role.OPERATOR}


@dataclass(frozen=True, slots=True)
class Row:
    """One subject. queues: the queue groups in which alone it may be subscribed to; () for any.
    many: one message has several answers."""

    subject: str
    about: str
    publish: Set[Role] = NOBODY
    subscribe: Set[Role] = NOBODY
    queues: tuple[str, ...] = ()
    many: bool = False


_CONSUMER = "{mesh}={model}=stage{stage}=any"
_CONFIG, _WEIGHTS, _MODELS = "swarm-{mesh}-config", "swarm-{mesh}-weights", "swarm-{mesh}-models"
_UPGRADES, _RELEASES = "swarm-{mesh}-upgrades", "swarm-{mesh}-releases"
_SUBMITTED, _ANSWERS, _READ = (
    f"SWARM={{mesh}}={kind}" for kind in ("submitted", "answers", "read")
)
_GET = "$JS.API.DIRECT.GET"

TABLE = (
    # Requests.
    Row(
        "swarm.{mesh}.infer.{model}",
        "requests to whichever node answers",
        publish={Role.CLIENT, Role.REQUESTER},
        subscribe=ANSWERERS,
        queues=("q", "w.*"),
    ),
    Row(
        "swarm.{mesh}.cancel.{model}",
        "requests that their clients end, by a secret",
        publish={Role.CLIENT, Role.REQUESTER},
        subscribe=ANSWERERS,
    ),
    Row(
        "swarm.{mesh}.notices.{model}",
        "which requests a node has in hand, for their witnesses",
        publish=ANSWERERS,
        subscribe=ANSWERERS,
    ),
    Row("swarm.{mesh}.features.{model}.*.1.any", "into the lane of stage 1", publish=REQUESTERS),
    Row(
        "swarm.{mesh}.features.{model}.*.*.any",
        "into the lane of the stage behind those that an edge has run itself (`--placement`)",
        publish={Role.EDGE},
    ),
    Row(
        "swarm.{mesh}.features.{model}.*.{next}.any", "into the next stage's lane", publish=SERVERS
    ),
    Row(
        "swarm.{mesh}.features.{model}.*.1.where",
        "on which linked servers are the lanes?",
        publish=ANSWERERS,
    ),
    Row(
        "swarm.{mesh}.features.{model}.*.{stage}.where",
        "is there a server with the own stage's lanes?",
        publish=SERVERS,
    ),
    Row(
        "swarm.{mesh}.features.*.*.1.where",
        "the same of stage 1, of any model",
        publish={Role.OPERATOR},
    ),
    Row("swarm.{mesh}.fresh.{model}.*.1", "fast mode, stage 1", publish=REQUESTERS),
    Row("swarm.{mesh}.fresh.{model}.*.{next}", "fast mode, the next stage", publish=SERVERS),
    Row(
        "swarm.{mesh}.fresh.{model}.*.{stage}",
        "fast mode, the own stage",
        subscribe=SERVERS,
        queues=("stage", "cover"),
    ),
    Row(
        "swarm.{mesh}.generate.{model}",
        "requests for tokens",
        publish={Role.CLIENT, Role.REQUESTER, Role.GATEWAY},
        subscribe=ANSWERERS,
        queues=("q", "w.*"),
        many=True,
    ),
    Row(
        "swarm.{mesh}.steps.{model}.*.1.*.*", "sessions to another node of stage 1", publish=SERVERS
    ),
    Row("swarm.{mesh}.steps.{model}.*.{next}.*.*", "steps to the next stage", publish=SERVERS),
    Row(
        "swarm.{mesh}.steps.{model}.*.{stage}.{user}.*",
        "steps for the own nodes of the own stage",
        subscribe=SERVERS,
    ),
    Row(
        "swarm.{mesh}.cancel.{model}.*",
        "requests that nobody waits for",
        publish=REQUESTERS,
        subscribe=SERVERS,
    ),
    # Lanes. The streams and their consumers are made by `swarm model push`.
    Row(
        f"$JS.API.CONSUMER.INFO.*.{_CONSUMER}",
        "is the own stage's consumer there?",
        publish=SERVERS,
    ),
    Row(
        f"$JS.API.CONSUMER.MSG.NEXT.*.{_CONSUMER}",
        "pull from the own stage's lane",
        publish=SERVERS,
    ),
    Row(f"$JS.ACK.*.{_CONSUMER}.>", "settle messages of the own stage", publish=SERVERS),
    Row(f"$JS.ACK.*.*.*.{_CONSUMER}.>", "the same, to a server with a domain", publish=SERVERS),
    Row("swarm.{mesh}.dead.{model}", "dead letters", publish=SERVERS),
    # The fleet.
    # A node's id begins with its user's name, which is a token of its own in these subjects: a
    # made-up node of another user hears nothing, and is dead to whoever asks it.
    Row("swarm.{mesh}.gossip.*.*", "ask any node", publish=NODES),
    Row("swarm.{mesh}.gossip.{user}.*", "gossip, of the own nodes", subscribe=NODES),
    Row("swarm.{mesh}.status.{user}.*", "statuses, of the own nodes", publish=NODES),
    Row("swarm.{mesh}.status.>", "statuses", subscribe=WATCHERS | {Role.UPDATER}),
    Row(
        "swarm.{mesh}.status-request",
        "statuses, now",
        publish=WATCHERS,
        subscribe=NODES | {Role.OPERATOR},
    ),
    Row(
        "swarm.{mesh}.observed.{user}.*",
        "what became of a client's requests, as it sees them",
        publish={Role.CLIENT, Role.REQUESTER},
    ),
    Row(
        "swarm.{mesh}.observed.>",
        "the same, of all clients",
        subscribe={Role.DASHBOARD, Role.OPERATOR},
    ),
    Row(
        "swarm.{mesh}.server",
        "an embedded server's state, from its supervisor",
        publish={Role.OPERATOR},
        subscribe=WATCHERS,
    ),
    # The operator's are those of `swarm up` about its server.
    Row(
        "swarm.{mesh}.events.*",
        "events",
        publish=NODES | {Role.OPERATOR},
        subscribe={Role.DASHBOARD, Role.OPERATOR},
    ),
    Row(f"{_GET}.SWARM={{mesh}}=events", "past events", publish={Role.DASHBOARD}),
    Row(
        "swarm.{mesh}.fleet",
        "the whole fleet's picture, from any node",
        publish=WATCHERS,
        subscribe=NODES,
        queues=("fleet",),
    ),
    Row(
        "swarm.{mesh}.someone",
        "who is there, from any node",
        publish=NODES,
        subscribe=NODES,
        queues=("someone",),
    ),
    Row("swarm.{mesh}.drain.*.*", "drain a node", publish={Role.OPERATOR}),
    Row("swarm.{mesh}.drain.{user}.*", "be drained", subscribe=NODES),
    # An edge, a shard and a gateway write what they know of; only the operator reads it.
    Row(
        "swarm.{mesh}.audit.*",
        "who asked what, and what an operator did",
        publish=ANSWERERS | SHARDS | {Role.OPERATOR},
        subscribe={Role.OPERATOR},
    ),
    Row(
        "swarm.{mesh}.tap.>",
        "copies of features, from the server, while `swarm record` runs",
        subscribe={Role.OPERATOR},
    ),
    Row("swarm.{mesh}.record.>", "recorded requests", publish={Role.OPERATOR}),
    Row(
        "swarm.{mesh}.results.*",
        "an edge's results, and joined ones",
        publish={Role.EDGE, Role.JOIN},
        subscribe=WATCHERS | {Role.JOIN},
    ),
    Row(
        "swarm.{mesh}.review.*",
        "pictures that an edge asks a person to look at",
        publish={Role.EDGE},
        subscribe={Role.OPERATOR},
    ),
    Row(
        "$SRV.PING.swarm-{mesh}", "look for nodes", publish=NODES | {Role.DASHBOARD, Role.OPERATOR}
    ),
    Row("$SRV.>", "service discovery", publish={Role.OPERATOR}, subscribe=NODES),
    # Work that can wait, in the JetStream domain of each site.
    Row("swarm.{mesh}.submit.*.*.{model}", "store a request that can wait", publish=SUBMITTERS),
    Row(
        "swarm.{mesh}.news.*",
        "a request or an answer was stored",
        publish=SUBMITTERS | {Role.GATEWAY},
        subscribe=SUBMITTERS | {Role.GATEWAY},
    ),
    Row("swarm.{mesh}.answers.*.*", "store an answer", publish={Role.GATEWAY}),
    Row("swarm.{mesh}.read.*.*", "what an agent has read", publish=SUBMITTERS),
    Row(
        f"$JS.API.STREAM.INFO.{_SUBMITTED}",
        "what a site stores",
        publish=SUBMITTERS | {Role.GATEWAY},
    ),
    Row(f"$JS.API.STREAM.INFO.{_ANSWERS}", "the same", publish={Role.GATEWAY}),
    Row(f"{_GET}.{_SUBMITTED}", "requests that wait", publish={Role.GATEWAY}),
    Row(f"{_GET}.{_ANSWERS}", "answers, of all agents", publish=SUBMITTERS | {Role.GATEWAY}),
    Row(f"{_GET}.{_READ}", "what agents have read", publish=SUBMITTERS | {Role.GATEWAY}),
    Row(f"$JS.API.STREAM.PURGE.{_SUBMITTED}", "delete what is answered", publish={Role.GATEWAY}),
    Row(f"$JS.API.STREAM.PURGE.{_ANSWERS}", "delete what was read", publish={Role.GATEWAY}),
    # Models and desired state.
    Row("swarm.{mesh}.config.>", "changes of models", subscribe=CONFIG_READERS),
    Row(
        f"{_GET}.KV_{_CONFIG}.$KV.{_CONFIG}.serve.{{model}}",
        "desired state",
        publish=NODES | {Role.REQUESTER},
    ),
    Row(
        f"{_GET}.KV_{_CONFIG}.$KV.{_CONFIG}.serve.*",
        "desired state of every model",
        publish={Role.DASHBOARD},
    ),
    Row("swarm.{mesh}.config.serve.*", "changes of desired state", subscribe={Role.DASHBOARD}),
    Row(
        f"{_GET}.KV_{_CONFIG}.$KV.{_CONFIG}.models.{{model}}.*",
        "manifests",
        publish=NODES | {Role.REQUESTER},
    ),
    Row(
        f"{_GET}.KV_{_CONFIG}.$KV.{_CONFIG}.models.*.*",
        "manifests of every model: how many stages have to have a node",
        publish={Role.DASHBOARD},
    ),
    Row(
        f"{_GET}.KV_{_CONFIG}",
        "older revisions of both, where the newest cannot be believed; of any model",
        publish=NODES | {Role.REQUESTER, Role.DASHBOARD},
    ),
    # A node can end a rollout, and nothing else: the traffic goes back to the version before.
    Row(f"$KV.{_CONFIG}.abort.{{model}}.*", "end a rollout whose guards are broken", publish=NODES),
    Row(
        f"{_GET}.KV_{_CONFIG}.$KV.{_CONFIG}.abort.{{model}}.*",
        "was a rollout ended?",
        publish=NODES | {Role.REQUESTER},
    ),
    # Whatever stands in a plan moves work and changes no result.
    Row(
        f"$KV.{_CONFIG}.plan.{{model}}.*",
        "propose a plan: which stages lie together",
        publish={Role.AUTO},
    ),
    Row(
        f"{_GET}.KV_{_CONFIG}.$KV.{_CONFIG}.plan.{{model}}.*",
        "the plan in force",
        publish={Role.AUTO},
    ),
    Row(
        "swarm.{mesh}.reports.{model}.*",
        "what requesters observe of a version under rollout",
        publish=NODES | {Role.REQUESTER},
        subscribe=NODES,
    ),
    Row(
        "swarm.{mesh}.guards.{model}.{user}.*",
        "how a rollout's guards stand, by the own nodes",
        publish=NODES,
    ),
    Row(
        "swarm.{mesh}.guards.{model}.*.*",
        "how a rollout's guards stand",
        subscribe=NODES | {Role.REQUESTER},
    ),
    Row(
        "swarm.{mesh}.guards.*.*.*",
        "the same, of any model",
        subscribe={Role.OPERATOR, Role.DASHBOARD},
    ),
    Row(
        f"$JS.API.STREAM.INFO.KV_{_CONFIG}",
        "is the registry there, and which models?",
        publish=NODES | {Role.REQUESTER, Role.DASHBOARD},
    ),
    Row(f"{_GET}.OBJ_{_MODELS}", "model files", publish=NODES),
    Row(f"$JS.API.STREAM.INFO.OBJ_{_MODELS}", "is the object store there?", publish=NODES),
    # Weights.
    Row("swarm.{mesh}.weights.{model}.*", "changes of weight versions", subscribe=NODES),
    Row(
        f"{_GET}.KV_{_WEIGHTS}.$KV.{_WEIGHTS}.*.{{model}}.>",
        "weight versions, and their tensors",
        publish=NODES,
    ),
    Row(f"{_GET}.KV_{_WEIGHTS}", "older revisions of them; of any model", publish=NODES),
    Row(f"$JS.API.STREAM.INFO.KV_{_WEIGHTS}", "is their store there?", publish=NODES),
    Row(f"$KV.{_WEIGHTS}.*.{{model}}.>", "mint a weight version", publish={Role.LEARNER}),
    Row(
        "swarm.{mesh}.deltas.{model}.*",
        "weight deltas",
        publish={Role.LEARNER},
        subscribe={Role.LEARNER},
    ),
    Row(
        "swarm.{mesh}.resync.{model}.*",
        "ask a neighbour for all that it has learned",
        publish={Role.LEARNER},
        subscribe={Role.LEARNER},
    ),
    # Releases of the node software. The file that an updater is given says whose it believes.
    Row(
        f"{_GET}.KV_{_UPGRADES}.$KV.{_UPGRADES}.>",
        "releases, the wave, how far each device is",
        publish={Role.UPDATER},
    ),
    Row(f"$KV.{_UPGRADES}.device.{{user}}", "how far the own device is", publish={Role.UPDATER}),
    Row(f"$JS.API.STREAM.INFO.KV_{_UPGRADES}", "which devices are there?", publish={Role.UPDATER}),
    Row(f"{_GET}.OBJ_{_RELEASES}", "files of releases", publish={Role.UPDATER}),
    Row(f"$JS.API.STREAM.INFO.OBJ_{_RELEASES}", "is their store there?", publish={Role.UPDATER}),
    # The operator.
    Row("$JS.API.>", "streams, consumers, everything of JetStream", publish={Role.OPERATOR}),
    Row(f"$KV.{_CONFIG}.>", "desired state, manifests", publish={Role.OPERATOR}),
    Row(f"$KV.{_WEIGHTS}.>", "weight versions of all models", publish={Role.OPERATOR}),
    Row(f"$O.{_MODELS}.>", "model files", publish={Role.OPERATOR}),
    Row(f"$KV.{_UPGRADES}.>", "releases, waves", publish={Role.OPERATOR}),
    Row(f"$O.{_RELEASES}.>", "files of releases", publish={Role.OPERATOR}),
    Row("$JS.EVENT.ADVISORY.>", "who changed streams", subscribe={Role.OPERATOR}),
    # Answers. Processes answer each other on four tokens; the server alone on more.
    Row("_INBOX.{user}.>", "the own inbox", subscribe=EVERYBODY),
    Row("_INBOX.*.*.*", "answers to processes; none that the server gives", publish=NODES),
    Row("_R_.>", "answers to clients of another account", publish=ANSWERERS | SERVERS),
    Row("$SYS.REQ.USER.INFO", "what may this user do?", publish=EVERYBODY),
)


def offered_to_clients(mesh: str) -> list[tuple[str, bool]]:
    """What the clients' account imports of the members': each subject of a mesh that a client may
    publish to, of all models and users, and whether a message to it has several answers."""
    return [
        (
            row.subject.replace("{mesh}", mesh).replace("{model}", "*").replace("{user}", "*"),
            row.many,
        )
        for row in TABLE
        if Role.CLIENT in row.publish and row.subject.startswith("swarm.")
    ]
