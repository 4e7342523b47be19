"""The store: an account without users, for what somebody believes.

Permissions check no reply subject: whoever may ask the server anything can let it send the answer
to any subject of its own account, past its own rights. So the streams that hold what others believe
(desired state, manifests, model files, weight versions, the audit) are in an account of their own,
and no stream of the members' account listens on their subjects.

Members use the subjects that they would use without all this. The server itself maps them, for
clients only, to the same subjects behind `WAY`, and those are what the members' account imports
from the store. `WAY` begins as acknowledgements do: nats-server refuses such a subject as a reply,
so no answer can be aimed at an import, and it maps no subject of an answer. A right to acknowledge
names a consumer in the fourth or the sixth token, which the dashes of `WAY` are not.

The lanes stay with the members: an import costs a hop of 4 KiB through the server a fifth more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.subjects import Subjects, covers, in_domain

WAY = "$JS.ACK.store.-.-.-"
_API = "$JS.API"


@dataclass(frozen=True, slots=True)
class Mapping:
    """What the server makes of a subject that a member publishes to."""

    subject: str
    target: str


@dataclass(frozen=True, slots=True)
class Service:
    """A subject that the store answers; members' account has it behind `WAY`. many: whether the
    answer is of several messages, rather than one."""

    subject: str
    many: bool = False

    @property
    def imported(self) -> str:
        return f"{WAY}.{self.subject}"


@dataclass(frozen=True, slots=True)
class Store:
    """All that a server's configuration says of the store of one mesh. news: subjects of changes,
    which members hear."""

    services: tuple[Service, ...]
    mappings: tuple[Mapping, ...]
    news: tuple[str, ...]


def store_of(mesh: str) -> Store:
    """The store of a mesh. Raises `SubjectError` for a name that is no token."""
    names = Subjects(mesh)
    writes = (
        f"$KV.{names.config_bucket}.>",
        f"$KV.{names.weights_bucket}.>",
        f"$O.{names.models_bucket}.>",
        f"{names.root}.audit.>",
    )
    mappings = [Mapping(each, f"{WAY}.{_kept(each)}") for each in writes]
    mappings += [
        Mapping(in_domain(each, "*"), f"{WAY}.{_kept(each)}")
        for each in writes
        if in_domain(each, "*") != each
    ]
    config, weights, files, audit = find_streams(names)
    for stream in (config, weights, files, audit):
        mappings.append(_call(f"STREAM.MSG.*.{stream}"))
        for call in (f"*.*.{stream}", f"*.*.{stream}.>"):
            mappings += [_call(call), _call(call, at_domain=True)]
    get = f"{_API}.DIRECT.GET"
    services = (
        Service(f"{_API}.STREAM.>"),
        Service(f"{_API}.CONSUMER.>"),
        Service(f"{get}.{config}"),
        Service(f"{get}.{config}.>"),
        Service(f"{get}.{weights}"),
        Service(f"{get}.{weights}.>"),
        Service(f"{get}.{files}", many=True),
        Service(f"{get}.{audit}"),
        Service(f"{get}.{audit}.>"),
        *(Service(each) for each in writes),
    )
    news = (
        f"{names.root}.config.>",
        f"{names.root}.weights.>",
        names.audit_all,
        "$JS.EVENT.ADVISORY.>",
    )
    return Store(services, tuple(mappings), news)


def find_streams(names: Subjects) -> tuple[str, ...]:
    """The streams that are in the store."""
    return (
        f"KV_{names.config_bucket}",
        f"KV_{names.weights_bucket}",
        f"OBJ_{names.models_bucket}",
        names.audit_stream,
    )


def ways_of(subjects: Iterable[str], mesh: str) -> list[str]:
    """What the server makes of those of these subjects that are the store's: it checks the rights
    to publish by that. mesh: as in the subjects. Raises as `store_of`."""
    mapped = [mapping.subject for mapping in store_of(mesh).mappings]
    return [
        f"{WAY}.{subject}"
        for subject in subjects
        if any(covers(each, subject) or covers(subject, each) for each in mapped)
    ]


def without_way(subject: str) -> str:
    """The subject that a process published to, where the server speaks of what it made of it."""
    return subject.removeprefix(f"{WAY}.")


def _call(call: str, *, at_domain: bool = False) -> Mapping:
    """Of a call of JetStream. at_domain: as processes at a site name it, for the same target."""
    asked = f"{_API}.{call}"
    return Mapping(
        in_domain(asked, "*") if at_domain else asked, f"{WAY}.{_kept(asked, skip=at_domain)}"
    )


def _kept(subject: str, skip: int = 0) -> str:
    """The target of a mapping that keeps all tokens. skip: wildcards in front of these, which the
    target leaves out."""
    tokens, number = [], int(skip)
    for each in subject.split("."):
        number += each == "*"
        tokens.append(f"{{{{wildcard({number})}}}}" if each == "*" else each)
    return ".".join(tokens)
