"""What a feature says about itself to the mesh: the one object `FEATURE` of
`swarm/<name>/feature.py`. What it adds to the programs stands in `nodes/<name>/feature.py`.

Importing `swarm.<name>.feature` starts nothing and imports no library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarm.link import Link
    from swarm.models.trials import Trials
    from swarm.routing.desired import Trial
    from swarm.subjects import Subjects

NOBODY: Set[str] = frozenset()
# In the subjects of rows: a direct read of JetStream, and the bucket of models and desired state.
GET, CONFIG = "$JS.API.DIRECT.GET", "swarm-{mesh}-config"


@dataclass(frozen=True, slots=True)
class Row:
    """One subject of the table of rights (`swarm.security.rights.table`), and who may.

    publish, subscribe: names of roles, and of groups of roles. queues: the queue groups in which
    alone it may be subscribed to; () for any. many: one message has several answers.
    """

    subject: str
    about: str
    publish: Set[str] = NOBODY
    subscribe: Set[str] = NOBODY
    queues: tuple[str, ...] = ()
    many: bool = False


def rows(text: str, **names: str) -> tuple[Row, ...]:
    """Rows of a text, one a line: subject | publish | subscribe | about. Who may is names with
    blanks between them; behind `in` stand the queue groups. A fifth part, `many`, says that one
    message has several answers. A line behind # is for readers. In a subject `<name>` stands for
    one of `names`, `<get>` and `<config>` for the constants above."""
    for name, value in {"get": GET, "config": CONFIG, **names}.items():
        text = text.replace(f"<{name}>", value)
    return tuple(_row(line) for line in text.strip().splitlines() if not line.startswith("#"))


def _row(line: str) -> Row:
    subject, publish, subscribe, about, *many = (part.strip() for part in line.split("|"))
    subscribe, _, queues = subscribe.partition(" in ")
    by, to = frozenset(publish.split()), frozenset(subscribe.split())
    return Row(subject, about, by, to, tuple(queues.split()), bool(many))


@dataclass(frozen=True, slots=True)
class UserRole:
    """A user's role that a feature adds. behind: the role behind which it stands on the page.
    groups: of roles, of which it is one. publishes, subscribes: subjects of rows that others
    declare. starts: the command that takes its credentials, with `{model}`; a node of this role
    where it is left out.
    """

    name: str
    about: str
    behind: str
    groups: Set[str] = NOBODY
    publishes: Set[str] = NOBODY
    subscribes: Set[str] = NOBODY
    starts: str = ""


@dataclass(frozen=True, slots=True)
class GossipEntry:
    """A kind of entry of a node's gossip. valid(rest, value): whether a peer's value is of the
    right kind and in range; rest: what its key has behind `KIND/`, "" where it is the kind alone.
    of_load: it says how busy a node is, and not what it serves or where."""

    valid: Callable[[str, object], bool]
    of_load: bool = False


@dataclass(frozen=True)
class MeshFeature:
    """All that a feature adds to the mesh; what it leaves out it does not have.

    name: of its rooms. of_mesh(): a subclass of `swarm.client.Client`, whose methods `swarm.Mesh`
    has. of_over(): the same of `swarm.asking.OverNats`. roles: of users. rights: rows of the rights
    table, by the subject of the row behind which they stand; they are the last ones where that is
    not there. stored: the kinds of subjects (`swarm.<mesh>.<kind>.…`) that its streams keep;
    stored_news: those of them that members hear once they are stored; news: the kinds on which the
    server itself speaks; taps: that of them to which it copies what enters lanes, while somebody
    asks it to. streams(subjects): those whose copies grow with the cluster. gossip(): entries that
    nodes gossip of themselves, by the kind that their keys begin with. status: the module whose
    `STATUS` has what a node's status says beside the core's fields, by the field, and what reads it
    (`swarm.fleet.documents`). asks(manifest): the versions of other models, NAME@VERSION, that a
    version asks, by its manifest, a JSON document. trial(document): the version on trial that
    desired state has in the field `rollout`; raises `InvalidArgument`. trials(link, subjects,
    under_way): follows versions on trial (`swarm.models.trials`).
    """

    name: str
    of_mesh: Callable[[], type] | None = None
    of_over: Callable[[], type] | None = None
    roles: Sequence[UserRole] = ()
    rights: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    stored: Sequence[str] = ()
    stored_news: Sequence[str] = ()
    news: Sequence[str] = ()
    taps: str = ""
    streams: Callable[[Subjects], Iterable[str]] = lambda subjects: ()
    gossip: Callable[[], Mapping[str, GossipEntry]] = dict
    status: str = ""
    asks: Callable[[Mapping[str, Any]], Iterable[str]] = lambda manifest: ()
    trial: Callable[[Any], Trial] | None = None
    trials: Callable[[Link, Subjects, Callable[[], int]], Trials] | None = None
