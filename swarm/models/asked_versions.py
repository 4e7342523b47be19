"""Versions that other models ask: kept in service for as long as those that ask them are.

A version names the versions of other models that it asks (`ModelInfo.asks`). Each of these models
has in its desired state, by the name of who asks, the versions that it has to serve beside its own:
so its nodes serve them, their lanes stay, and no collection of garbage takes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from swarm.errors import InvalidArgument, NotFound, Untrusted
from swarm.model import ModelInfo
from swarm.routing import parse_desired

MOST_DEPTH = 4  # versions that ask each other one behind the other, the last of which asks none

Document = dict[str, Any]
Info = Callable[[str, str], Awaitable[ModelInfo]]  # of a model's version; raises `NotFound`
Asked = dict[str, set[str]]  # versions by model


def split_name(name: str) -> tuple[str, str]:
    """Of NAME@VERSION."""
    model, _, version = name.partition("@")
    return model, version


async def check_asked(asks: ModelInfo, info: Info) -> None:
    """Raises `NotFound` where a version asks one that is not there, and `InvalidArgument` where the
    versions that ask each other are more than `MOST_DEPTH` behind each other: so a circle, which
    none of them can begin while versions never change, is refused too."""
    way = [f"{asks.model}@{asks.version}"]
    level = dict.fromkeys(asks.asks, way)
    while level:
        behind: dict[str, list[str]] = {}
        for name, before in level.items():
            way = [*before, name]
            if len(way) > MOST_DEPTH:
                raise InvalidArgument(
                    f"{' asks '.join(way)}: at most {MOST_DEPTH} may stand behind each other"
                )
            try:
                found = await info(*split_name(name))
            except NotFound as error:
                raise NotFound(f"{' asks '.join(way)}: {error}") from None
            behind |= dict.fromkeys(found.asks, way)
        level = behind


async def asked_by(model: str, document: Document | None, info: Info) -> Asked:
    """What the versions of a model ask that this desired state has serve, and the one before, which
    a rollback brings back."""
    if document is None:
        return {}
    state = parse_desired(document | {"model": model})
    found: Asked = {}
    for version in {*state.versions, str(document.get("previous") or "")} - {""}:
        try:
            asks = (await info(model, version)).asks
        except (NotFound, Untrusted, InvalidArgument):
            continue  # gone, or nobody's: nodes say so who shall serve it
        for name in asks:
            asked, its = split_name(name)
            found.setdefault(asked, set()).add(its)
    return found


def with_asked(document: Document, asker: str, versions: set[str]) -> Document:
    """A desired state in which `asker` asks these versions."""
    asked = {name: its for name, its in document.get("asked", {}).items() if name != asker}
    if versions:
        asked[asker] = sorted(versions)
    kept = {name: value for name, value in document.items() if name != "asked"}
    return kept | ({"asked": asked} if asked else {})


def joined(one: Mapping[str, set[str]], other: Mapping[str, set[str]]) -> Asked:
    """The versions of both."""
    return {name: one.get(name, set()) | other.get(name, set()) for name in {*one, *other}}
