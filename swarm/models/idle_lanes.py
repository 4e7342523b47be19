"""The lanes of versions that serve no longer: given back, so that the server has room for others.

A lane sets bytes aside at its server, used or not. A version keeps its lanes while its model's
desired state names it (shares, pins, a rollout), while it is the one before, which a rollback
brings back, while a node pulls there, and while a message waits there.
"""

from __future__ import annotations

import logging

from swarm.errors import ApiError, Untrusted
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.routing import BadDesiredState
from swarm.subjects import Subjects, api
from swarm.transport.lane import lanes_of_model

log = logging.getLogger("swarm.registry")


async def needed_versions(registry: Registry, model: str) -> set[str] | None:
    """The versions whose lanes stay; None where that is unknown. Raises `Unavailable`."""
    try:
        present = await registry.in_force(model)
    except (BadDesiredState, Untrusted):
        return None
    if present is None or present.refused:  # another reader may believe it
        return None
    return {*present.state.versions, str(present.document.get("previous") or "")}


async def give_back_lanes(
    link: Link, subjects: Subjects, registry: Registry, model: str, *, keep_newer: bool
) -> list[str]:
    """Remove the lanes of a model's versions that nobody needs; returns the names of their streams.

    keep_newer: those stay too that were pushed behind the version that serves: an operator has made
    them for nodes that may not, and has yet to promote it.

    Raises `ApiError`, `Unavailable`, `NotConnected`.
    """
    by_version = await lanes_of_model(link, subjects, model)
    needed = await needed_versions(registry, model)
    if needed is None or not set(by_version) - needed:
        return []
    if keep_newer:
        pushed = await _pushed(link, subjects, model, {*by_version, *needed})
        newest = max((pushed.get(version, 0) for version in needed), default=0)
        needed |= {version for version in by_version if pushed.get(version, 0) > newest}
    gone: list[str] = []
    for version in sorted(set(by_version) - needed):
        streams = by_version[version]
        if not any([await _is_used(link, stream) for stream in streams]):
            for stream in streams:
                await _remove(link, stream)
                log.info("%s serves no longer: %s is given back", f"{model}@{version}", stream)
            gone += streams
    return gone


async def _remove(link: Link, stream: str) -> None:
    try:
        await jetstream.call(link, api("STREAM.DELETE", stream))
    except ApiError as error:
        if error.err_code != jetstream.STREAM_NOT_FOUND:  # somebody else was first
            raise


async def _pushed(link: Link, subjects: Subjects, model: str, versions: set[str]) -> dict[str, int]:
    """The revision of each version's manifest, which grows with time; 0 where it is gone."""
    found: dict[str, int] = {}
    for version in versions - {""}:
        key = f"models.{model}.{version}"
        _, found[version], _ = await jetstream.kv_message(link, subjects.config_bucket, key)
    return found


async def _is_used(link: Link, stream: str) -> bool:
    """Whether a message waits there, or a node."""
    try:
        info = await jetstream.call(link, api("STREAM.INFO", stream))
    except ApiError as error:
        if error.err_code != jetstream.STREAM_NOT_FOUND:
            raise
        return False
    if info["state"]["messages"]:
        return True
    listed = await jetstream.call(link, api("CONSUMER.LIST", stream), {"offset": 0})
    return any(consumer.get("num_waiting") for consumer in listed.get("consumers") or ())
