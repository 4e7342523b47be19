"""Every subject, stream and consumer name of the mesh, in one place.

Each token is checked against `[A-Za-z0-9_-]+`, so nothing user-supplied can address
another subject (a `.`, `*` or `>` would). `=` separates the parts of stream and consumer
names: it cannot stand in a token, so two different meshes never share a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from swarm.errors import SubjectError

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
# What a message names to be answered at is published to: a space or a line's end in it would be a
# command to the server. It names a socket too (`swarm.samehost.host_socket`).
INBOX = re.compile(r"_INBOX(?:\.[A-Za-z0-9_-]{1,128}){1,8}")
# Beginnings of subjects that are no inbox: an answer there would be an order, a document or a call.
_MEANT_FOR_OTHERS = ("swarm.", "$")
# Processes answer each other on `<inbox>.<number>`, and only the server answers below an inbox that
# ends so: a right to answer processes is none to forge what the server says.
FROM_SERVER = "server"
_OF_SECOND = "b"  # ends the inbox of a process's second connection
OTHER = "_"  # stands for each character of a name that no subject may hold
ANY = "any"  # the lane that all replicas of a stage share


def token(value: str, what: str = "token") -> str:
    """`value`, if it may stand in a subject; raises `SubjectError` otherwise."""
    if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
        raise SubjectError(
            f"{what} {value!r} may hold only letters, digits, '_' and '-', 1 to 128 of them"
        )
    return value


def as_token(text: str) -> str:
    """A name that somebody gave, without the characters that no subject may hold."""
    return re.sub(r"[^A-Za-z0-9_-]", OTHER, text[:128])


def may_answer(reply: str) -> bool:
    """Whether a node may answer on the reply subject that somebody else chose: on any but subjects
    of a mesh, of JetStream or of the server."""
    return not reply.startswith(_MEANT_FOR_OTHERS)


def second_inbox(inbox: str) -> str:
    """The inbox of a process's second connection: who knows the first one knows this too."""
    return f"{inbox}{_OF_SECOND}"


def covers(pattern: str, subject: str) -> bool:
    """Whether a subject, or all subjects of a pattern, are among those of `pattern` (`*`, `>`)."""
    wanted, given = pattern.split("."), subject.split(".")
    for at, token_ in enumerate(wanted):
        if token_ == ">":
            return len(given) > at
        if at >= len(given) or given[at] == ">" or (token_ != "*" and token_ != given[at]):
            return False
    return len(wanted) == len(given)


@lru_cache(maxsize=4096)
def _features(root: str, model: str, version: str, stage: int, lane: str) -> str:
    """Asked for each message: checked once, as nodes come and go."""
    return (
        f"{root}.features.{token(model, 'model name')}.{token(version, 'version')}"
        f".{stage}.{token(lane, 'lane')}"
    )


def parts_of(node: str) -> tuple[str, str]:
    """The user whose node this is, and what tells it from that user's other nodes.

    They are what stands before and behind the last `-`; an id that is not made so is its own user,
    and `-` stands behind. So no two ids have the same parts, and no id is another user's.
    """
    user, _, unique = node.rpartition("-")
    return (user, unique) if user and unique else (node, "-")


def id_of(user: str, unique: str) -> str:
    """The node of these parts."""
    return user if unique == "-" else f"{user}-{unique}"


def speaker(subject: str, headers: object = None, kind: str = "status", before: int = 3) -> str:
    """The node that a status is of: its subject says so, and under rights only that node's user may
    publish there. "" where the subject names none.

    headers: of the message. A node sends none, and the server has some in what it reads from a
    stream: so an answer that somebody aimed at the subject has no speaker. kind: of subjects on
    which nodes speak; before: the tokens that stand before the node in them.
    """
    tokens = subject.split(".")
    named = tokens[before:] if tokens[2:3] == [kind] and headers is None else []
    if len(named) == 2:
        return id_of(*named)
    return named[0] if len(named) == 1 else ""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one mesh; a feature adds its own in a subclass. All methods raise
    `SubjectError` on a bad token.

    by_user: whether who asks connects as a user with a name. Then a node's user is a token of its
    own in the subjects that the node speaks or is spoken to on, and the server's rights can bind
    it; in a mesh without users the id is one token.
    """

    mesh: str = "default"
    by_user: bool = False

    def __post_init__(self) -> None:
        token(self.mesh, "mesh name")

    @classmethod
    def of(cls, subjects: Subjects) -> Self:
        """Those of the same mesh."""
        return cls(subjects.mesh, subjects.by_user)

    @property
    def root(self) -> str:
        return f"swarm.{self.mesh}"

    def under(self, kind: str, **tokens: str) -> str:
        """A subject of this kind, and the tokens behind it, by what each of them is called."""
        named = (token(value, what.replace("_", " ")) for what, value in tokens.items())
        return ".".join((self.root, kind, *named))

    def stream_of(self, kind: str) -> str:
        """The mesh's one stream of this kind."""
        return f"SWARM={self.mesh}={kind}"

    def bucket(self, kind: str) -> str:
        """A bucket of keys, or of objects."""
        return f"swarm-{self.mesh}-{kind}"

    def named(self, node: str) -> str:
        """A node in the subjects that it speaks or is spoken to on: one token, or two."""
        id_ = token(node, "node id")
        return ".".join(parts_of(id_)) if self.by_user else id_

    def infer(self, model: str) -> str:
        return f"{self.root}.infer.{token(model, 'model name')}"

    def notices(self, model: str) -> str:
        """Which requests nodes have begun, and ended: for the witnesses of the model."""
        return self.under("notices", model_name=model)

    def features(self, model: str, version: str, stage: int, lane: str = ANY) -> str:
        return _features(self.root, model, version, int(stage), lane)

    def features_of(self, model: str, version: str, stage: int | str = "*") -> str:
        """All lanes of one stage, or of all stages."""
        number = stage if stage == "*" else int(stage)
        return (
            f"{self.root}.features.{token(model, 'model name')}.{token(version, 'version')}"
            f".{number}.*"
        )

    def features_of_model(self, model: str) -> str:
        """All lanes of all versions."""
        return f"{self.root}.features.{token(model, 'model name')}.*.*.*"

    def fresh(self, model: str, version: str, stage: int) -> str:
        """Core NATS subject of a stage in fast mode (`--delivery core`)."""
        return (
            f"{self.root}.fresh.{token(model, 'model name')}.{token(version, 'version')}"
            f".{int(stage)}"
        )

    def cancel(self, model: str, version: str) -> str:
        """Ids of requests whose requester waits no more."""
        return self.under("cancel", model_name=model, version=version)

    def cancel_asked(self, model: str) -> str:
        """Requests at `infer` that their clients end."""
        return self.under("cancel", model_name=model)

    def gossip(self, node: str) -> str:
        return f"{self.root}.gossip.{self.named(node)}"

    @property
    def discovery(self) -> str:
        """Every node of the mesh answers here, as a NATS micro service (ADR-32)."""
        return f"$SRV.PING.swarm-{self.mesh}"

    @property
    def someone(self) -> str:
        """Any one node answers here with its id."""
        return f"{self.root}.someone"

    def status(self, node: str) -> str:
        return f"{self.root}.status.{self.named(node)}"

    @property
    def status_all(self) -> str:
        return f"{self.root}.status.>"

    def observed(self, client: str) -> str:
        """What became of a client's requests, as it sees them."""
        return f"{self.root}.observed.{self.named(client)}"

    @property
    def observed_all(self) -> str:
        return f"{self.root}.observed.>"

    @property
    def server(self) -> str:
        """What the supervisor of an embedded server says of it."""
        return f"{self.root}.server"

    @property
    def status_request(self) -> str:
        """Every node that hears a message here publishes its status at once."""
        return f"{self.root}.status-request"

    @property
    def fleet(self) -> str:
        """Any one node answers here with a page of the whole fleet's view."""
        return f"{self.root}.fleet"

    def drain(self, node: str) -> str:
        """Asks a node to drain and to end, as SIGTERM does."""
        return f"{self.root}.drain.{self.named(node)}"

    def event(self, kind: str) -> str:
        return f"{self.root}.events.{token(kind, 'event kind')}"

    @property
    def events_all(self) -> str:
        return f"{self.root}.events.*"

    def dead(self, model: str) -> str:
        return f"{self.root}.dead.{token(model, 'model name')}"

    def results(self, name: str) -> str:
        """Where an edge publishes its results when it is told to."""
        return self.under("results", result_name=name)

    @property
    def config_all(self) -> str:
        """Changes of models and desired state, republished from KV."""
        return f"{self.root}.config.>"

    @property
    def dead_all(self) -> str:
        return f"{self.root}.dead.*"

    def stream(self, model: str, version: str, stage: int, domain: str = "") -> str:
        """The stream of the lanes of one stage: who fills them fills no other stage's.

        domain: of the JetStream that holds it, "" where it has none. Acks name a stream and no
        domain, so two linked servers may not have streams of one name.
        """
        lanes = self.older_stream(model, version)
        return f"{lanes}=stage{int(stage)}" + (f"={token(domain, 'domain')}" if domain else "")

    def older_stream(self, model: str, version: str, domain: str = "") -> str:
        """The stream of all lanes of a model version, as older swarms have it. Without a domain:
        what the names of all of the version's streams begin with."""
        name = f"SWARM={self.mesh}={token(model, 'model name')}={token(version, 'version')}"
        return f"{name}={token(domain, 'domain')}" if domain else name

    def whereabouts(self, model: str, version: str, stage: int) -> str:
        """A subject of the stage's stream, for questions to each server that has such a stream;
        no node serves it."""
        return self.features(model, version, stage, "where")

    @property
    def dead_stream(self) -> str:
        return self.stream_of("dead")

    @property
    def events_stream(self) -> str:
        return self.stream_of("events")

    def consumer(self, model: str, stage: int, lane: str = ANY) -> str:
        """One name for all versions of the model: rights name it once, and a wildcard for the
        stream. (A wildcard stands for a whole token, so it cannot name "all versions" of one.)"""
        lane = token(lane, "lane")
        return f"{self.mesh}={token(model, 'model name')}=stage{int(stage)}={lane}"

    @property
    def models_bucket(self) -> str:
        return self.bucket("models")

    @property
    def config_bucket(self) -> str:
        return self.bucket("config")


def stored(root: str, kind: str) -> str:
    """Where the server tells what it has stored of `events` or of the `audit`. Under rights those
    who listen to these hear this instead: what members publish goes to an account of its own
    (`swarm.security.rights.store`). root: of the mesh's subjects."""
    return f"{root}.stored.{kind}.>"


def republished(root: str, kind: str) -> dict[str, str]:
    """`republish` of the stream of `events` or of the `audit`, as JetStream's API takes it."""
    return {"src": f"{root}.{kind}.>", "dest": stored(root, kind)}


def kv_get_subject(bucket: str, key: str) -> str:
    """Where the server answers with the value of a key."""
    return f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}"


def in_domain(subject: str, domain: str) -> str:
    """Where the JetStream of a domain takes a call, or a key's value, that a server without one
    takes at `subject`; the domain "" is the server's own. Other subjects are the same in all."""
    if domain and subject.startswith("$JS.API."):
        return f"$JS.{domain}{subject[3:]}"
    if domain and subject.startswith("$KV."):
        return f"$JS.{domain}.API.{subject}"
    return subject


def without_domain(subject: str) -> str:
    """The inverse of `in_domain`: as the domain's own server, which maps it so, speaks of it."""
    head, _, rest = subject.partition(".")
    domain, _, call = rest.partition(".API.")
    if head != "$JS" or not call or TOKEN.fullmatch(domain) is None:
        return subject
    return call if call.startswith("$KV.") else f"$JS.API.{call}"


def api(verb: str, *names: str) -> str:
    """A JetStream API subject: `api("CONSUMER.CREATE", stream, consumer)`."""
    return ".".join(("$JS.API", verb, *names))
