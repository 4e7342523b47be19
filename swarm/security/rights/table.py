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

from collections.abc import Iterator, Set
from dataclasses import replace
from enum import StrEnum

from swarm.feature import CONFIG, GET, Row
from swarm.features import features


class Role(StrEnum):
    """A user's role that the core has. `SHARD` is every shard behind the first, which also answers
    requests."""

    CLIENT = "client"
    REQUESTER = "requester"
    EDGE = "edge"
    SHARD_1 = "shard-1"
    SHARD = "shard-k"
    FALLBACK = "fallback"
    STANDBY = "standby"
    GATEWAY = "gateway"
    OPERATOR = "operator"


_ABOUT_CORE = {
    Role.CLIENT: "asks for inferences and tokens, from an account of its own; sees nothing else",
    Role.REQUESTER: "asks by lanes and by fast mode; reads the registry and statuses",
    Role.EDGE: "captures, runs early stages, sends to others, answers requests; reads no features",
    Role.SHARD_1: "serves stage 1, answers requests",
    Role.SHARD: "serves stage k",
    Role.FALLBACK: "serves all stages of its model, answers requests",
    Role.STANDBY: "as a fallback; takes the stage that lacks its nodes",
    Role.GATEWAY: "answers requests for any model",
    Role.OPERATOR: "makes streams and consumers, pushes, promotes; asks for no inference",
}
_ADDED = tuple(role for each in features() for role in each.roles)


def _about() -> Iterator[tuple[str, str]]:
    for role, text in _ABOUT_CORE.items():
        yield str(role), text
        yield from ((each.name, each.about) for each in _ADDED if each.behind == role)


ABOUT = dict(_about())  # by role, in the order of the page
ROLES = tuple(ABOUT)


def _group(name: str, *roles: str) -> frozenset[str]:
    """Roles of the core, and those that features add to this group."""
    return frozenset({*map(str, roles), *(each.name for each in _ADDED if name in each.groups)})


# Seconds for which the server keeps the way back to a client whose answer has many messages: as
# long as an answer may take (`swarm.requests.request.MAX_BUDGET`).
TOKENS_WITHIN = 600

EVERYBODY = frozenset(ROLES)
SHARDS = _group("shards", Role.SHARD_1, Role.SHARD)
COVERS = _group("covers", Role.FALLBACK, Role.STANDBY)  # they serve any stage of their model
SERVERS = SHARDS | COVERS
NODES = SERVERS | _group("nodes", Role.EDGE, Role.GATEWAY)
ANSWERERS = COVERS | _group("answerers", Role.EDGE, Role.SHARD_1, Role.GATEWAY)
REQUESTERS = ANSWERERS | {Role.REQUESTER}
WATCHERS = _group("watchers", Role.REQUESTER, Role.OPERATOR)
CONFIG_READERS = NODES | {Role.REQUESTER, Role.OPERATOR}
_GROUPS = {
    "shards": SHARDS,
    "covers": COVERS,
    "servers": SERVERS,
    "nodes": NODES,
    "answerers": ANSWERERS,
    "requesters": REQUESTERS,
    "watchers": WATCHERS,
}

_CONSUMER = "{mesh}={model}=stage{stage}=any"
_MODELS = "swarm-{mesh}-models"

_OF_CORE = (
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
    Row("swarm.{mesh}.status.>", "statuses", subscribe=WATCHERS),
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
        subscribe={Role.OPERATOR},
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
        subscribe={Role.OPERATOR},
    ),
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
    Row(
        "swarm.{mesh}.results.*",
        "an edge's results, and joined ones",
        publish={Role.EDGE},
        subscribe=WATCHERS,
    ),
    Row("$SRV.PING.swarm-{mesh}", "look for nodes", publish=NODES | {Role.OPERATOR}),
    Row("$SRV.>", "service discovery", publish={Role.OPERATOR}, subscribe=NODES),
    # Models and desired state.
    Row("swarm.{mesh}.config.>", "changes of models", subscribe=CONFIG_READERS),
    Row(
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.serve.{{model}}",
        "desired state",
        publish=NODES | {Role.REQUESTER},
    ),
    Row(
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.models.{{model}}.*",
        "manifests",
        publish=NODES | {Role.REQUESTER},
    ),
    Row(
        f"{GET}.KV_{CONFIG}",
        "older revisions of both, where the newest cannot be believed; of any model",
        publish=NODES | {Role.REQUESTER},
    ),
    Row(
        f"$JS.API.STREAM.INFO.KV_{CONFIG}",
        "is the registry there, and which models?",
        publish=NODES | {Role.REQUESTER},
    ),
    Row(f"{GET}.OBJ_{_MODELS}", "model files", publish=NODES),
    Row(f"$JS.API.STREAM.INFO.OBJ_{_MODELS}", "is the object store there?", publish=NODES),
    # The operator.
    Row("$JS.API.>", "streams, consumers, everything of JetStream", publish={Role.OPERATOR}),
    Row(f"$KV.{CONFIG}.>", "desired state, manifests", publish={Role.OPERATOR}),
    Row(f"$O.{_MODELS}.>", "model files", publish={Role.OPERATOR}),
    Row("$JS.EVENT.ADVISORY.>", "who changed streams", subscribe={Role.OPERATOR}),
    # Answers. Processes answer each other on four tokens; the server alone on more.
    Row("_INBOX.{user}.>", "the own inbox", subscribe=EVERYBODY),
    Row("_INBOX.*.*.*", "answers to processes; none that the server gives", publish=NODES),
    Row("_R_.>", "answers to clients of another account", publish=ANSWERERS | SERVERS),
    Row("$SYS.REQ.USER.INFO", "what may this user do?", publish=EVERYBODY),
)


def _following(row: Row, behind: dict[str, list[Row]]) -> Iterator[Row]:
    """A row, and those of features that stand behind it."""
    yield row
    for each in behind.pop(row.subject, ()):
        yield from _following(each, behind)


def _all_rows() -> Iterator[Row]:
    behind: dict[str, list[Row]] = {}
    for feature in features():
        for subject, rows in feature.rights.items():
            behind.setdefault(subject, []).extend(rows)
    for row in _OF_CORE:
        yield from _following(row, behind)
    for rows in behind.values():  # what they would follow is of a feature that is not there
        yield from rows


def _by_roles(row: Row) -> Row:
    """The row with the names of roles alone, those that features add among them."""

    def named(names: Set[str]) -> frozenset[str]:
        return frozenset().union(*(_GROUPS.get(name, {name}) for name in names))

    publish = named(row.publish) | {role.name for role in _ADDED if row.subject in role.publishes}
    subscribe = {role.name for role in _ADDED if row.subject in role.subscribes}
    return replace(row, publish=publish, subscribe=named(row.subscribe) | subscribe)


TABLE = tuple(map(_by_roles, _all_rows()))


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
