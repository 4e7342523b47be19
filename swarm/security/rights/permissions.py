"""What the table says: the rights of one user, as lists of subjects for a server's configuration or
a template of a scoped signing key; and who may use a subject, for the sentence that tells a denial.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from swarm.errors import InvalidArgument
from swarm.security.rights.store import ways_of
from swarm.security.rights.table import COVERS, ROLES, TABLE, Role
from swarm.subjects import in_domain, token

MOST_STAGES = 16  # of a fallback or a standby that does not say how many stages its model has
_SHARD = re.compile(r"shard-([1-9][0-9]{0,2})")
_PLACES = re.compile(r"\{([a-z]+)\}")
_ESCAPED = re.compile(r"\\\{[a-z]+\\\}|\\\*")  # a place, or a wildcard for one token


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects, as NATS reads them: a queue group stands behind the subject and a space."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def as_doc(self) -> dict[str, dict[str, list[str]]]:
        """As the server's own documents have it."""
        return {
            "publish": {"allow": list(self.publish)},
            "subscribe": {"allow": list(self.subscribe)},
        }

    def as_conf(self, indent: str = "") -> str:
        """A `permissions` block of nats-server's configuration."""
        lines = ["permissions: {"]
        for name, subjects in (("publish", self.publish), ("subscribe", self.subscribe)):
            lines.append(f"  {name}: {{ allow: [")
            lines += [f"    {json.dumps(subject)}" for subject in subjects]
            lines.append("  ] }")
        lines.append("}")
        return "\n".join(indent + line for line in lines)


@dataclass(frozen=True, slots=True)
class Post:
    """A role and its stage: `shard-2` is the role `shard-k` at stage 2."""

    role: str
    stage: int = 0

    @classmethod
    def of(cls, text: str) -> Post:
        """Of a role as people write it. Raises `InvalidArgument`."""
        if (shard := _SHARD.fullmatch(text)) is not None:
            stage = int(shard[1])
            return cls(str(Role.SHARD_1 if stage == 1 else Role.SHARD), stage)
        if text not in ROLES or text == Role.SHARD:
            known = ", ".join(role for role in ROLES if role != Role.SHARD)
            raise InvalidArgument(f"role {text!r}: it is {known}, or shard-2, shard-3 …")
        return cls(text)

    def stages(self, of_model: int) -> list[int]:
        """The stages that it serves; a fallback or a standby serves all `of_model` stages."""
        if self.role in COVERS:
            return list(range(1, of_model + 1))
        return [self.stage] if self.stage else []

    def __str__(self) -> str:
        return f"shard-{self.stage}" if self.stage else self.role


def permissions_of(
    role: str,
    *,
    mesh: str,
    models: Sequence[str],
    user: str = "",
    stages: int = MOST_STAGES,
    asks: Sequence[str] = (),
) -> Permissions:
    """The rights of a user. models: names, or `*` for every model, which a shard and a fallback
    cannot have. user: the token behind `_INBOX.`; the role where it is left out. stages: of a
    fallback's models. asks: other models, which a server's own ask (`ModelInfo.asks`). Raises
    `InvalidArgument`, `SubjectError`."""
    post = Post.of(role)
    served = post.stages(stages)
    if not models and needs_model(post.role):
        raise InvalidArgument(f"role {role}: say for which model, with --model NAME")
    if "*" in models and served:
        raise InvalidArgument(
            f"role {role}: name its models one by one: its lanes have their names"
        )
    if asks and not served:
        raise InvalidArgument(f"role {role} serves no model that asks others: leave out --asks")
    places = {
        "mesh": [token(mesh, "mesh name")],
        "model": [m if m == "*" else token(m, "model name") for m in models],
        "asked": [token(model, "model name") for model in asks],
        "stage": [str(stage) for stage in served],
        "next": [str(stage + 1) for stage in served],
        "user": [token(user or str(post), "user name")],
    }
    return subjects_of(post.role, places)


def subjects_of(
    role: str, places: Mapping[str, Sequence[str]], *, queues: bool = True
) -> Permissions:
    """The role's rows with all values of each place. queues: whether a subject that is for queue
    groups is limited to them; without, it may be subscribed to in any way."""
    publish: dict[str, None] = {}
    subscribe: dict[str, None] = {}
    for row in TABLE:
        if role in row.publish:
            filled = _filled(row.subject, places)
            publish |= dict.fromkeys(filled)
            # From a site, the same calls name the hub's domain.
            publish |= dict.fromkeys(in_domain(subject, "*") for subject in filled)
            for mesh in places["mesh"]:
                publish |= dict.fromkeys(ways_of(filled, mesh))
        if role in row.subscribe:
            for subject in _filled(row.subject, places):
                names = [f"{subject} {queue}" for queue in row.queues if queues] or [subject]
                subscribe |= dict.fromkeys(names)
    return Permissions(tuple(publish), tuple(subscribe))


def _filled(subject: str, places: Mapping[str, Sequence[str]]) -> list[str]:
    names = list(dict.fromkeys(_PLACES.findall(subject)))
    filled = []
    for values in itertools.product(*(places[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        filled.append(_PLACES.sub(lambda place, chosen=chosen: chosen[place[1]], subject))  # type: ignore[misc]
    return filled


def needs_model(role: str) -> bool:
    """Whether some right of the role is for a model."""
    return any("{model}" in row.subject for row in TABLE if role in row.publish | row.subscribe)


@lru_cache(maxsize=256)
def _pattern(subject: str) -> re.Pattern[str]:
    """All subjects that a row stands for, of any mesh, model and stage."""
    if subject.endswith(">"):
        subject, rest = subject[:-1], ".+"
    else:
        rest = ""
    return re.compile(_ESCAPED.sub("[^.]+", re.escape(subject)) + rest)


def who_may(publish: bool, subject: str) -> list[str]:
    """The roles that may publish to `subject`, or subscribe to it, in the right mesh, for the
    right model and stage."""
    roles: set[str] = set()
    for row in TABLE:
        if _pattern(row.subject).fullmatch(subject):
            roles |= row.publish if publish else row.subscribe
    return [role for role in ROLES if role in roles]
