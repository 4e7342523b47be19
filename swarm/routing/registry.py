"""Policies by name: those built in, and users' own by entry points of the group "swarm.routing".

    [project.entry-points."swarm.routing"]
    my-policy = "my_package.routing:MyPolicy"

Entry points are looked up at the first name that is not built in, never at import.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from random import Random
from typing import TYPE_CHECKING, Any

from swarm.routing.adaptive import Adaptive
from swarm.routing.admitting import TokenBuckets
from swarm.routing.base import Policy
from swarm.routing.basic import (
    ConsistentHash,
    LeastConnections,
    PowerOfTwo,
    Pull,
    RoundRobin,
    WeightedLeastPending,
)
from swarm.routing.errors import BadPolicyOption, PolicyLoadFailed, UnknownPolicy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "swarm.routing"
BUILT_IN: dict[str, type[Policy]] = {
    kind.name: kind
    for kind in (
        Pull,
        RoundRobin,
        LeastConnections,
        PowerOfTwo,
        WeightedLeastPending,
        ConsistentHash,
        TokenBuckets,
        Adaptive,
    )
}


def entry_points(*, group: str, name: str = "") -> EntryPoints:
    """The standard library's; importing it costs 2 MB and 12 ms, which hardly any mesh needs."""
    import importlib.metadata

    found = importlib.metadata.entry_points(group=group)
    return found.select(name=name) if name else found


def policy_names() -> list[str]:
    """Every name that `policy` knows, built in first; reads the entry points' names only."""
    others = {point.name for point in entry_points(group=GROUP)} - BUILT_IN.keys()
    return [*BUILT_IN, *sorted(others)]


def policy(name: str, /, *, rng: Random | None = None, **options: Any) -> Policy:
    """A new policy by name, with its knobs as options (see each class).

    rng: the dice it rolls; by default a generator of its own, seeded by the operating system. A
    built-in name cannot be replaced by an entry point.
    Raises UnknownPolicy, PolicyLoadFailed, or BadPolicyOption.
    """
    factory: Callable[..., Any] = BUILT_IN.get(name) or _load(name)
    try:
        signature(factory).bind(rng=rng, **options)
    except TypeError as error:
        raise BadPolicyOption(name, str(error)) from None
    try:
        made = factory(rng=rng, **options)
    except (TypeError, ValueError) as error:
        raise BadPolicyOption(name, str(error)) from error
    if not isinstance(made, Policy):
        raise PolicyLoadFailed(name, f"it made a {type(made).__name__}, not a Policy")
    return made


def _load(name: str) -> Callable[..., Any]:
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise UnknownPolicy(name, policy_names())
    try:
        factory = next(iter(found)).load()
    except Exception as error:  # foreign code: whatever it raises is the user's to read
        raise PolicyLoadFailed(name, f"{type(error).__name__}: {error}") from error
    if not callable(factory):
        raise PolicyLoadFailed(name, "it is not callable")
    return factory  # type: ignore[no-any-return]
