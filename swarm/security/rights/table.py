"""The table of rights: every subject of the mesh, every call of JetStream, and who may.

In a subject stand for one token or a part of it: {mesh}; {model}; {asked}, each model that the own
one asks (a composition asks models); {stage}, the stage of a shard, or each stage of a fallback;
{next}, the stage behind it; {user}, the name of the user. `*` and `>` are wildcards of NATS. (A
wildcard stands for a whole token.)

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

from swarm.feature import Row, rows
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
    "everybody": EVERYBODY,
    "config-readers": CONFIG_READERS,
}

_CONSUMER = "{mesh}={model}=stage{stage}=any"
_MODELS = "swarm-{mesh}-models"

_OF_CORE = rows(
    """
# Requests.
swarm.{mesh}.infer.{model} | client requester | answerers in q w.* |\
 requests to whichever node answers
swarm.{mesh}.cancel.{model} | client requester | answerers |\
 requests that their clients end, by a secret
swarm.{mesh}.notices.{model} | answerers | answerers |\
 which requests a node has in hand, for their witnesses
swarm.{mesh}.features.{model}.*.1.any | requesters | | into the lane of stage 1
swarm.{mesh}.features.{model}.*.*.any | edge | |\
 into the lane of the stage behind those that an edge has run itself (`--placement`)
swarm.{mesh}.features.{model}.*.{next}.any | servers | | into the next stage's lane
swarm.{mesh}.features.{model}.*.1.where | answerers | | on which linked servers are the lanes?
swarm.{mesh}.features.{model}.*.{stage}.where | servers | |\
 is there a server with the own stage's lanes?
swarm.{mesh}.features.*.*.1.where | operator | | the same of stage 1, of any model
swarm.{mesh}.fresh.{model}.*.1 | requesters | | fast mode, stage 1
swarm.{mesh}.fresh.{model}.*.{next} | servers | | fast mode, the next stage
swarm.{mesh}.fresh.{model}.*.{stage} | | servers in stage cover | fast mode, the own stage
swarm.{mesh}.cancel.{model}.* | requesters | servers | requests that nobody waits for
# Lanes. The streams and their consumers are made by `swarm model push`.
$JS.API.CONSUMER.INFO.*.<consumer> | servers | | is the own stage's consumer there?
$JS.API.CONSUMER.MSG.NEXT.*.<consumer> | servers | | pull from the own stage's lane
$JS.ACK.*.<consumer>.> | servers | | settle messages of the own stage
$JS.ACK.*.*.*.<consumer>.> | servers | | the same, to a server with a domain
swarm.{mesh}.dead.{model} | servers | | dead letters
# The fleet.
# A node's id begins with its user's name, which is a token of its own in these subjects: a
# made-up node of another user hears nothing, and is dead to whoever asks it.
swarm.{mesh}.gossip.*.* | nodes | | ask any node
swarm.{mesh}.gossip.{user}.* | | nodes | gossip, of the own nodes
swarm.{mesh}.status.{user}.* | nodes | | statuses, of the own nodes
swarm.{mesh}.status.> | | watchers | statuses
swarm.{mesh}.status-request | watchers | nodes operator | statuses, now
swarm.{mesh}.observed.{user}.* | client requester | |\
 what became of a client's requests, as it sees them
swarm.{mesh}.observed.> | | operator | the same, of all clients
swarm.{mesh}.server | operator | watchers | an embedded server's state, from its supervisor
# The operator's are those of `swarm up` about its server.
swarm.{mesh}.events.* | nodes operator | operator | events
swarm.{mesh}.fleet | watchers | nodes in fleet | the whole fleet's view, from any node
swarm.{mesh}.someone | nodes | nodes in someone | who is there, from any node
swarm.{mesh}.drain.*.* | operator | | drain a node
swarm.{mesh}.drain.{user}.* | | nodes | be drained
swarm.{mesh}.results.* | edge | watchers | an edge's results, and joined ones
$SRV.PING.swarm-{mesh} | nodes operator | | look for nodes
$SRV.> | operator | nodes | service discovery
# Models and desired state.
swarm.{mesh}.config.> | | config-readers | changes of models
<get>.KV_<config>.$KV.<config>.serve.{model} | nodes requester | | desired state
<get>.KV_<config>.$KV.<config>.models.{model}.* | nodes requester | | manifests
<get>.KV_<config> | nodes requester | |\
 older revisions of both, where the newest cannot be believed; of any model
$JS.API.STREAM.INFO.KV_<config> | nodes requester | | is the registry there, and which models?
<get>.OBJ_<models> | nodes | | model files
$JS.API.STREAM.INFO.OBJ_<models> | nodes | | is the object store there?
# The operator.
$JS.API.> | operator | | streams, consumers, everything of JetStream
$KV.<config>.> | operator | | desired state, manifests
$O.<models>.> | operator | | model files
$JS.EVENT.ADVISORY.> | | operator | who changed streams
# Answers. Processes answer each other on four tokens; the server alone on more.
_INBOX.{user}.> | | everybody | the own inbox
_INBOX.*.*.* | nodes | | answers to processes; none that the server gives
_R_.> | answerers servers | | answers to clients of another account
$SYS.REQ.USER.INFO | everybody | | what may this user do?
""",
    consumer=_CONSUMER,
    models=_MODELS,
)


def _following(row: Row, behind: dict[str, list[Row]]) -> Iterator[Row]:
    """A row, and those of features that stand behind it."""
    yield row
    for each in behind.pop(row.subject, ()):
        yield from _following(each, behind)


def _all_rows() -> Iterator[Row]:
    behind: dict[str, list[Row]] = {}
    for feature in features():
        for subject, after in feature.rights.items():
            behind.setdefault(subject, []).extend(after)
    for row in _OF_CORE:
        yield from _following(row, behind)
    for after in behind.values():  # what they would follow is of a feature that is not there
        yield from after


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
