"""The store: an account without users, which has all streams of a mesh.

Permissions check no reply subject: whoever may ask the server anything can let it send the answer
to any subject of its own account, past its own rights. An account with JetStream takes a message on
`$JS.API.STREAM.DELETE.<stream>` for a call, whoever sent it, so the members' account has no
JetStream, and no stream listens on any of its subjects. All streams are in an account of their own:
lanes, dead letters, events, desired state, manifests, model files, weight versions, releases, the
audit, recordings.

Members use the subjects that they would use without all this. The server itself maps them, for
clients only, to the same subjects behind `WAY`, and those are what the members' account imports
from the store. `WAY` begins as acknowledgements do: nats-server refuses such a subject as a reply,
so no answer can be aimed at an import, and it maps no subject of an answer. A right to acknowledge
names a consumer in the fourth or the sixth token, which the dashes of `WAY` are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.features import features
from swarm.subjects import Subjects, covers, in_domain, stored

WAY = "$JS.ACK.store.-.-.-"
_API = "$JS.API"
# Seconds for which the server keeps the way back of an answer that may be of several messages.
# Longer than a pull stands (`swarm.transport.lane.pulls.MOST_EXPIRES`).
ANSWERED_WITHIN = 30


@dataclass(frozen=True, slots=True)
class Mapping:
    """What the server makes of a subject that a member publishes to."""

    subject: str
    target: str


@dataclass(frozen=True, slots=True)
class StoreService:
    """A subject that the store answers. many: whether the answer is of several messages, rather
    than one. asked: as members have it behind `WAY`; by the same name, unless this says another."""

    subject: str
    many: bool = False
    asked: str = ""

    @property
    def imported(self) -> str:
        return f"{WAY}.{self.asked or self.subject}"


@dataclass(frozen=True, slots=True)
class StoreAnnouncement:
    """A subject that the store speaks on; members hear it as `heard`."""

    subject: str
    heard: str


@dataclass(frozen=True, slots=True)
class Store:
    """All that a server's configuration says of the store of one mesh."""

    services: tuple[StoreService, ...]
    mappings: tuple[Mapping, ...]
    news: tuple[StoreAnnouncement, ...]

    @property
    def offered(self) -> tuple[StoreService, ...]:
        """The services without other names for the same."""
        return tuple(service for service in self.services if not service.asked)


def store_of(mesh: str, domain: str = "") -> Store:
    """The store of a mesh. domain: of the server's JetStream, "" where it has none: processes at a
    site name it in their calls. Raises `SubjectError` for a name that is no token."""
    root = Subjects(mesh).root
    written = (
        "$KV.>",
        "$O.>",
        *(f"{root}.{kind}.>" for kind in _of_all("stored", "features", "dead", "events")),
    )
    services = [
        StoreService(f"{_API}.INFO"),
        StoreService(f"{_API}.STREAM.>"),
        StoreService(f"{_API}.CONSUMER.>", many=True),
        StoreService(f"{_API}.DIRECT.>", many=True),
        StoreService("$JS.ACK.>"),
        *map(StoreService, written),
    ]
    mappings = [Mapping(each, f"{WAY}.{each}") for each in (f"{_API}.>", "$JS.ACK.>", *written)]
    if domain:
        # As one subject: where a link comes up, nats-server puts mappings of its own for calls in
        # the place of ours that are for the same ones (`$JS.hub.API.STREAM.>` and so on).
        mappings.append(Mapping(in_domain(f"{_API}.>", domain), f"{WAY}.{_API}.>"))
        services.append(StoreService("$KV.>", asked=f"{_API}.$KV.>"))
    told = [f"{root}.{kind}.>" for kind in _of_all("news", "config")]
    news = [StoreAnnouncement(each, each) for each in (*told, "$JS.EVENT.ADVISORY.>")]
    # nats-server does not export as a stream what it has imported as a service. So listeners to
    # these subjects hear the streams that store them.
    retold = _of_all("stored_news", "events")
    news += [StoreAnnouncement(stored(root, kind), f"{root}.{kind}.>") for kind in retold]
    return Store(tuple(services), tuple(mappings), tuple(news))


def _of_all(field: str, *kinds: str) -> list[str]:
    """Kinds of subjects: of the core, and of the features."""
    return [*kinds, *(kind for each in features() for kind in getattr(each, field))]


def ways_of(subjects: Iterable[str], mesh: str) -> list[str]:
    """What the server makes of those of these subjects that are the store's: it checks the rights
    to publish by that. mesh: as in the subjects. Raises as `store_of`."""
    mapped = [mapping.subject for mapping in store_of(mesh).mappings]
    ways = []
    for subject in subjects:
        if any(covers(each, subject) or covers(subject, each) for each in mapped):
            ways.append(f"{WAY}.{subject}")
            if subject.startswith("$KV."):
                ways.append(f"{WAY}.{_API}.{subject}")  # of a call that names a domain
    return ways


def without_way(subject: str) -> str:
    """The subject that a process published to, where the server speaks of what it made of it."""
    asked = subject.removeprefix(f"{WAY}.")
    key = asked.removeprefix(f"{_API}.")
    return key if key.startswith("$KV.") else asked
