"""What the mesh stores of models and does not need: old versions, parts of broken pushes.

A version is needed that the model's desired state names (shares, pins, a rollout), that is the one
before, that a living node serves, or that is among the last few pushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from swarm.errors import Untrusted
from swarm.link import Link, jetstream
from swarm.models.artifacts import ObjectStore
from swarm.models.registry import Registry
from swarm.routing import BadDesiredState
from swarm.subjects import Subjects, api
from swarm.transport.lane import lane_streams

KEEP = 2  # versions of each model, the last ones that were pushed
YOUNG = 3600.0  # seconds: parts that are younger may belong to a push that is under way


@dataclass(frozen=True)
class Garbage:
    """versions: the bytes of their files, by model and version. orphans: the bytes of objects of no
    version, by name. lost_chunks: of no object, their count by name. kept: models of which all is
    kept, and why."""

    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    orphans: Mapping[str, int] = field(default_factory=dict)
    lost_chunks: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


def unneeded(pushed: Mapping[str, int], wanted: Set[str], keep: int) -> list[str]:
    """The versions of one model that may go. pushed: the revision of each, which grows with time;
    wanted: those that somebody needs; keep: so many of the last stay."""
    by_age = sorted(pushed, key=lambda version: pushed[version])
    old = by_age[: max(0, len(by_age) - keep)]
    return [version for version in old if version not in wanted]


class Collector:
    """Finds and removes garbage of one mesh. young: seconds for which parts of no version stay.
    Raises `Unavailable`, `ApiError`."""

    def __init__(
        self, link: Link, subjects: Subjects, registry: Registry, young: float = YOUNG
    ) -> None:
        self._young = young
        self._link = link
        self._subjects = subjects
        self._registry = registry
        self._objects = ObjectStore(link, subjects.models_bucket)

    async def find(self, in_use: Set[tuple[str, str]], keep: int = KEEP) -> Garbage:
        """What may go now. in_use: the models and versions that living nodes serve. Removes
        nothing."""
        bucket = self._subjects.config_bucket
        pushed: dict[str, dict[str, int]] = {}
        for model, version in await self._registry.models():
            key = f"models.{model}.{version}"
            data, revision, _ = await jetstream.kv_message(self._link, bucket, key)
            if data is not None:
                pushed.setdefault(model, {})[version] = revision
        sizes = await self._objects.sizes()
        kept: dict[str, str] = {}
        gone: dict[tuple[str, str], int] = {}
        for model, revisions in pushed.items():
            try:
                wanted = await self._wanted(model)
            except (BadDesiredState, Untrusted) as error:
                kept[model] = str(error)
                continue
            if isinstance(wanted, str):
                kept[model] = wanted
                continue
            wanted |= {version for name, version in in_use if name == model}
            for version in unneeded(revisions, wanted, keep):
                prefix = f"{model}/{version}/"
                size = sum(size for name, size in sizes.items() if name.startswith(prefix))
                gone[model, version] = size
        there = {f"{model}/{version}/" for model, found in pushed.items() for version in found}
        orphans = {
            name: size
            for name, size in sizes.items()
            if not any(name.startswith(prefix) for prefix in there)
            and await self._objects.age(name=name) > self._young
        }
        lost_chunks = {
            chunks: count
            for chunks, count in (await self._objects.lost_chunks()).items()
            if await self._objects.age(chunks=chunks) > self._young
        }
        return Garbage(gone, orphans, lost_chunks, kept)

    async def _wanted(self, model: str) -> set[str] | str:
        """The versions that the desired state names, and the one before; or why nobody can say."""
        present = await self._registry.in_force(model)
        if present is None:
            return "no version of it serves"
        if present.refused:  # another reader may believe it
            return present.refused
        return {*present.state.versions, str(present.document.get("previous") or "")}

    async def sweep(self, garbage: Garbage) -> Garbage:
        """Remove it; returns what was removed. A version that is wanted meanwhile stays."""
        gone: dict[tuple[str, str], int] = {}
        for (model, version), size in garbage.versions.items():
            wanted = await self._wanted(model)
            if isinstance(wanted, str) or version in wanted:
                continue
            # The manifest first: a version is there as a whole, or not at all.
            await self._registry.forget(model, version)
            await self._objects.remove(f"{model}/{version}/")
            await self._remove_lanes(model, version)
            gone[model, version] = size
        for name in garbage.orphans:
            await self._objects.remove(name)
        for chunks in garbage.lost_chunks:
            await self._objects.remove_chunks(chunks)
        return Garbage(gone, garbage.orphans, garbage.lost_chunks, garbage.kept)

    async def _remove_lanes(self, model: str, version: str) -> None:
        """Only where nothing waits in them."""
        for info in await lane_streams(self._link, self._subjects, model, version):
            if not info["state"]["messages"]:
                await jetstream.call(self._link, api("STREAM.DELETE", info["config"]["name"]))
