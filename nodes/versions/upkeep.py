"""What a mesh keeps at its server, held against what it has to be: looked at, told of, mended.

The lanes of the versions that serve, dead letters, events, keys, model files, weight versions.
Nodes look all the time, and mend where they may make streams; else an operator's command does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from nodes.config import REPLICATED, NodeConfig
from nodes.features import features
from nodes.limits import lane_options
from nodes.versions.lanes import STORAGE_UNDER_RIGHTS
from swarm.errors import ApiError, NotConnected, PermissionDenied, SwarmError, Unavailable
from swarm.fleet.events import stream_config as events_config
from swarm.link import jetstream
from swarm.link.grants import EVERYTHING
from swarm.link.kept_stream import CONSUMER_MISSING, MISSING, KeptStream
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.models.idle_lanes import give_back_lanes
from swarm.transport.lane import kept_dead_letters, kept_lanes, lane_streams

log = logging.getLogger("swarm.upkeep")

PUSH = "swarm model push DIR"
OF_A_STORE = ("subjects", "allow_direct", "allow_rollup_hdrs", "max_age")  # what nobody may change
FREE_SPACE = "free space on that server's disk, then restart that server"


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that a mesh keeps at its server, and that is not as it has to be. title: what it
    is. text: what is wrong. mend: what an operator types. where: of a lane, its model and version;
    "" where it is the whole mesh's."""

    stream: str
    title: str
    text: str
    mend: str
    where: str = ""

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.title}: {self.text}; an operator mends it: {self.mend}"

    def document(self) -> dict[str, str]:
        """JSON types only."""
        return {
            "stream": self.stream,
            "title": self.title,
            "detail": self.text,
            "mend": self.mend,
        } | ({"of": self.where} if self.where else {})


def lanes_of(mesh: Mesh, info: ModelInfo, config: NodeConfig) -> list[KeptStream]:
    """The lanes of a version, as nodes with these settings make them."""
    options = lane_options(info, config)
    return kept_lanes(mesh.link, mesh.subjects, info.model, info.version, info.last, options)


def common_of(mesh: Mesh) -> list[KeptStream]:
    """What the whole mesh keeps. Keys and files are looked at, and never made empty: what they held
    is pushed again."""
    link, subjects = mesh.link, mesh.subjects
    promote = "swarm model promote NAME@VERSION"
    return [
        kept_dead_letters(link, subjects, promote),
        KeptStream(link, "the stream of events", events_config(subjects), promote),
        *stores_of(mesh),
    ]


def stores_of(mesh: Mesh) -> list[KeptStream]:
    """Keys, model files, and what features keep."""
    link, subjects = mesh.link, mesh.subjects
    config, models = subjects.config_bucket, subjects.models_bucket
    keys, files = ({"allow_direct": True, "allow_rollup_hdrs": rolled} for rolled in (False, True))
    return [
        KeptStream(
            link,
            "the store of keys (which versions there are, and which serve)",
            keys | {"name": f"KV_{config}", "subjects": [f"$KV.{config}.>"]},
            PUSH,
            fixed=OF_A_STORE,
            is_last_copy=True,
            probe=f"$KV.{config}.probe",
        ),
        KeptStream(
            link,
            "the store of model files",
            files | {"name": f"OBJ_{models}", "subjects": [f"$O.{models}.{k}.>" for k in "CM"]},
            PUSH,
            fixed=OF_A_STORE,
            is_last_copy=True,
            probe=f"$O.{models}.C.probe",
        ),
        *kept_by_features(mesh),
    ]


def kept_by_features(mesh: Mesh) -> list[KeptStream]:
    """What features keep at the server, each for the whole mesh."""
    return [kept for feature in features() for kept in feature.keeps(mesh)]


async def make_stores(mesh: Mesh) -> None:
    """Make what features keep: nodes may have no right to. Raises as `KeptStream.mend`."""
    for kept in kept_by_features(mesh):
        await kept.mend()


async def look(kept: Iterable[KeptStream], where: str = "") -> list[Flaw]:
    """What is wrong at present. Streams of which the server tells nothing are left out: it is away,
    or elects a leader.

    Raises `NotConnected`."""
    flaws = []
    for each in kept:
        try:
            texts = await each.look()
        except NotConnected:
            raise
        except (Unavailable, ApiError, PermissionDenied) as error:
            log.debug("%s: %s", each.title, error)
            continue
        flaws += [Flaw(each.stream, each.title, text, each.mended_by, where) for text in texts]
    return flaws


async def store_flaws(mesh: Mesh, kept: Iterable[KeptStream], where: str = "") -> list[Flaw]:
    """The first stream that is there and takes no message, which only a message tells: one is
    stored in each, and purged. Raises as `look`.

    A full disk harms each stream that is written to, even after the disk has room again. So dead
    letters are tried first, and the look ends at the first stream that fails.
    """
    first = common_of(mesh)[0]
    for each in (first, *(stream for stream in kept if stream.stream != first.stream)):
        try:
            text = await each.stores()
        except NotConnected:
            raise
        except (Unavailable, ApiError, PermissionDenied) as error:
            log.debug("%s: %s", each.title, error)
            continue
        if text:
            return [Flaw(each.stream, each.title, text, FREE_SPACE, "" if each is first else where)]
    return []


async def mended(kept: Sequence[KeptStream], flaws: Sequence[Flaw]) -> list[Flaw]:
    """Mend what has a flaw and may be mended from here; the flaws that are left. Raises
    `NotConnected`."""
    broken = {flaw.stream for flaw in flaws}
    where = {flaw.stream: flaw.where for flaw in flaws}
    failed: dict[str, str] = {}
    for each in kept:
        if each.stream in broken and each.may_mend:
            try:
                await each.mend()
            except SwarmError as error:
                log.warning("%s cannot be mended: %s", each.title, error)
                failed[each.stream] = str(error)
    found = await look([each for each in kept if each.stream in broken])
    left = [replace(flaw, where=where[flaw.stream]) for flaw in found]
    return [
        replace(flaw, text=f"{flaw.text} ({failed[flaw.stream]})")
        if flaw.stream in failed
        else flaw
        for flaw in left
    ]


async def operators_lanes(mesh: Mesh, info: ModelInfo) -> list[KeptStream]:
    """The lanes of a version, for an operator: kept as those that are there are, else as
    `swarm model push` makes them. Raises `SwarmError`."""
    found = await lane_streams(mesh.link, mesh.subjects, info.model, info.version)
    storages = [str(stream["config"]["storage"]) for stream in found]
    usual = "memory" if mesh.link.grants is EVERYTHING else STORAGE_UNDER_RIGHTS
    config = NodeConfig("gateway", storage=[*storages, usual][0], lanes=REPLICATED)
    return lanes_of(mesh, info, config)


@dataclass(frozen=True, slots=True)
class Upkept:
    """What an operator's look has found: flaws that were mended, and those that are left; streams
    of lanes of versions that serve no longer, which were given back."""

    mended: Sequence[Flaw] = ()
    left: Sequence[Flaw] = ()
    given_back: Sequence[str] = ()


async def served_versions(mesh: Mesh, model: str) -> list[ModelInfo]:
    """The versions of a model that nodes serve, by its desired state. Raises `SwarmError`."""
    present = await mesh.registry.in_force(model)
    versions = () if present is None else present.state.versions
    return [await mesh.registry.info(model, version) for version in dict.fromkeys(versions)]


async def upkeep_by_operator(mesh: Mesh, models: Collection[str], *, mends: bool = True) -> Upkept:
    """Look at the lanes of these models' versions that serve, and at what is the whole mesh's. With
    `mends`, mend it where this user may, and give back the lanes of versions that serve no longer.
    Where nodes may make streams, those that are missing are theirs to make: a version that has no
    node yet has no lanes.

    Raises `SwarmError`."""
    kept = common_of(mesh)
    where: dict[str, str] = {}
    for model in models:
        for info in await served_versions(mesh, model):
            if info.generates or await older_stream_is_there(mesh, info):
                continue
            lanes = await operators_lanes(mesh, info)
            kept += lanes
            where |= {lane.stream: f"{info.model}@{info.version}" for lane in lanes}
    by_nodes = set(where) | {mesh.subjects.dead_stream}
    if mesh.link.grants is not EVERYTHING:
        by_nodes = set()
    flaws = [
        replace(flaw, where=where.get(flaw.stream, ""))
        for flaw in await look(kept)
        if not (flaw.stream in by_nodes and flaw.text in (MISSING, CONSUMER_MISSING))
    ]
    if not mends:
        return Upkept([], flaws + await store_flaws(mesh, kept))
    given_back: list[str] = []
    for model in models:  # first, since this makes room
        given_back += await given_back_of(mesh, model)
    left = await mended(kept, flaws) if flaws else []
    streams = {flaw.stream for flaw in left}
    return Upkept([flaw for flaw in flaws if flaw.stream not in streams], left, given_back)


async def given_back_of(mesh: Mesh, model: str) -> list[str]:
    """Give back the lanes of a model's versions that nobody needs; the names of their streams.
    Raises `SwarmError`."""
    # Nodes that may not make lanes find those that an operator has made before it promotes.
    keeps_newer = mesh.link.grants is not EVERYTHING
    return await give_back_lanes(
        mesh.link, mesh.subjects, mesh.registry, model, keep_newer=keeps_newer
    )


async def older_stream_is_there(mesh: Mesh, info: ModelInfo) -> bool:
    """Whether an older swarm's one stream has the lanes of this version. Raises `SwarmError`."""
    older = mesh.subjects.older_stream(info.model, info.version, mesh.link.domain)
    return await jetstream.stream_exists(mesh.link, older)
