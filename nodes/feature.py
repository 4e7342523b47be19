"""What a feature says about itself: the one object `FEATURE` of `nodes/<name>/feature.py`.

A feature is all that lies in rooms of its name: `swarm/<name>`, `shards/<name>`, `nodes/<name>` and
the folders `<name>` of the tests. The core imports no feature. It asks `nodes.features` for those
that are there, and calls what they have declared here, so that a feature is added by its rooms and
one line of that list, and removed with its rooms.

Importing `nodes.<name>.feature` starts nothing and imports no library: its functions import their
work when they are called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from swarm.errors import InvalidArgument

T = TypeVar("T")


class MissingExtra(InvalidArgument):
    """An extra of the package is not installed; no other try of the same installation helps."""


def imported(path: str) -> Any:
    """What `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def later(path: str) -> Any:
    """The function `module:name`, imported when it is called."""
    return lambda *given, **more: imported(path)(*given, **more)


if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from nodes.audit import Audit
    from nodes.config import NodeConfig
    from nodes.connection.connection import Connection
    from nodes.health.endpoint import Pages
    from nodes.look import Look
    from nodes.meaning import Meaning, Opens
    from nodes.notes import ModelNote
    from nodes.up.companion import Companion
    from nodes.versions.loaded import Loaded, Loading
    from nodes.versions.versions import Versions
    from shards.manifest import Manifest
    from shards.parts import Addition, ModelHints
    from swarm.gossip import Event
    from swarm.link import Link, LinkMessage
    from swarm.link.kept_stream import KeptStream
    from swarm.mesh import Mesh
    from swarm.model import ModelInfo
    from swarm.models.registry import Registry
    from swarm.requests.witnessing import Notices
    from swarm.subjects import Subjects
    from swarm.wire.messages import Request, Result


@dataclass(frozen=True)
class NodeRole:
    """A role of `swarm-node`. about: for its help, after the name and a colon. answers: it answers
    the mesh's requests. witnesses: it may look after the requests that others answer. of_model: it
    serves one model, which it waits for if it was not told which."""

    about: str
    answers: bool = False
    witnesses: bool = False
    of_model: bool = True


@dataclass(frozen=True)
class Start:
    """What a node is started with. started: `time.monotonic()` of the process's start. on_change:
    is told of each change of state. stop: is set when the node shall end."""

    config: NodeConfig
    started: float
    on_change: Callable[[dict[str, Any]], None]
    stop: asyncio.Event


Life = Callable[[Start], Awaitable[None]]


class Watched(Protocol):
    """A node as others see it."""

    def status(self) -> dict[str, Any]:
        """Its status document as of now."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What the parts of a node work with. answer(model, request): as the node answers whoever asks
    it; a failure is a result. audit: as of `Feature.audit`."""

    connection: Connection
    versions: Versions
    answer: Callable[[str, Request], Awaitable[Result]]
    audit: Audit | None


class Places(Protocol):
    """Which stages a node serves at present. on_change(): they are others from now on."""

    on_change: Callable[[], None]

    def stages(self, version: str) -> frozenset[int] | None:
        """Those of a version that this node shall serve; None while it is to leave all as it is."""
        ...

    def failed(self, version: str, stage: int, error: Exception) -> None:
        """A stage could not be loaded."""
        ...


class Service(Protocol):
    """Requests of another verb than `infer` that clients send to a node."""

    @property
    def verb(self) -> str:
        """Of the subject."""
        ...

    def start(self) -> None:
        """Be asked from now on."""
        ...

    async def stop(self) -> None:
        """Take no more requests."""
        ...

    def take(self, message: LinkMessage, waited: float) -> None:
        """Answer a request in the place of a node that has not begun, for `waited` seconds."""
        ...


class Part:
    """Work that a node does beside its own requests. `run` begins once the node serves, ends when
    it is cancelled, and is begun again where it raises; `name` is told then."""

    name: str

    async def run(self) -> None:
        """Do the work until cancelled."""
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        """Gossip has learned something of another node."""

    def desired_state_was_read(self) -> None:
        """What the mesh shall serve may have changed."""

    async def version_was_loaded(self, model: str, version: str) -> None:
        """A model version serves here once this returns. Raises what makes it not be served."""

    def version_was_freed(self, model: str, version: str) -> None:
        """A model version serves here no more."""

    def weights_are_behind(self, model: str, version: str, n: int) -> None:
        """A request asks for weight version `n`, which this node does not have yet."""

    def status(self) -> dict[str, Any]:
        """Fields of the node's status document."""
        return {}


class ModelLines(Protocol):
    """What becomes of models, for people who watch."""

    async def run(self) -> None:
        """Hear of it until cancelled."""
        ...

    def lines(self, now: float) -> Mapping[str, str]:
        """A line for each model of which there is something to say. now: of `time.monotonic`."""
        ...


class HeardMesh(Protocol):
    """What a page that hears a mesh has at hand."""

    link: Link
    subjects: Subjects
    registry: Registry


class AtPush(Protocol):
    """What a feature does at the push of a version. Both raise `SwarmError`."""

    async def before(self, client: Mesh, manifest: Manifest) -> None:
        """Refuse what cannot be done: nothing is in the mesh yet."""
        ...

    async def after(self, client: Mesh, info: ModelInfo) -> tuple[dict[str, Any], str]:
        """The version is in the mesh. Returns fields of the command's document, and a line."""
        ...


Tensors = Mapping[str, "np.ndarray"]  # by the names that the shards' files have
TensorsOf = Callable[["Mesh", "ModelInfo", int], Awaitable[Tensors]]
# Reads a model to be split: its file, and what lies beside it. Raises ModelError.
Source = Callable[[], "tuple[Path | bytes, ModelHints]"]
Note = Callable[["Link", "Subjects", str, str, Mapping[str, Any]], Awaitable[bool]]

Samples = Callable[["Mesh", str, int, float], Awaitable[dict[str, "np.ndarray"]]]
# (part of the manifest, link, version, what makes the runs of a stage) -> what makes them.
AroundStage = Callable[[Any, "Link", "ModelInfo", Callable[..., Any]], Callable[..., Any]]
Prepare = Callable[["Loading"], Awaitable[Callable[[], "Loaded"]]]
PrepareLook = Callable[["Loading"], Awaitable["Look"]]


class Given(dict[type, Any]):
    """The options of one run of a command, by their dataclasses: the command's own, and those that
    features add to it."""

    def of(self, kind: type[T]) -> T | None:
        """None where the command has no such options."""
        return self.get(kind)


@dataclass(frozen=True)
class Asking:
    """How people ask a model that is not asked by `swarm infer`. shell: words after `swarm`.
    python: a program for a shell, with the fields `python`, `url`, `mesh` and `model` to fill in.
    nats: words after `nats` and the server."""

    shell: str
    python: str
    nats: str


@dataclass(frozen=True)
class CommandGroup:
    """Commands of `swarm` that begin with one word. help: of the group."""

    help: str
    commands: Commands


Commands = Mapping[str, Mapping[str, Any]]
"""Commands by the heading of their help and by name: each is the function `module:name`, whose file
is imported when the command is called, or a `CommandGroup`."""


@dataclass(frozen=True)
class Feature:
    """All that a feature adds to the programs; what it leaves out it does not have."""

    name: str
    """Of its rooms."""

    settings: Sequence[type] = ()
    """Dataclasses of settings (`nodes.settings`) that `swarm-node` gets; `NodeConfig.of` gives
    their values."""

    check: Callable[[NodeConfig], None] = lambda config: None
    """Raises `InvalidArgument` for settings that contradict each other."""

    signs: Callable[[NodeConfig], bool] = lambda config: False
    """Whether a node with these settings signs what it tells, and so has a key pair even where it
    was given none."""

    roles: Mapping[str, NodeRole] = field(default_factory=dict)
    """Roles of `swarm-node`, by name."""

    life: Callable[[NodeConfig], Life | None] = lambda config: None
    """How a node with these settings lives, None where that is not the feature's affair; an edge
    that is a camera, for instance."""

    parts: Callable[[Surroundings], Iterable[Part]] = lambda around: ()
    """Of a node of any role that serves."""

    leaves_within: Callable[[NodeConfig], float] = lambda config: 0.0
    """Seconds that a node with these settings needs to end, where they are more than others
    need."""

    places: Callable[[NodeConfig], Places | None] = lambda config: None
    """What says which stages a node serves, where that changes while it runs, else None."""

    audit: Callable[[Connection], Audit | None] = lambda connection: None
    """What keeps on record what a node does, else None."""

    note: Note | None = None
    """Keeps on record what an operator has done: note(link, subjects, act, by, fields). False where
    the mesh keeps none. Raises `SwarmError`."""

    samples: Samples | None = None
    """Inputs of a model's traffic as they pass, by name, axis 0 the sample: samples(client, model,
    count, seconds)."""

    pages: Callable[[Watched], Pages] = lambda node: {}
    """What a node serves at its port for figures, by path. Raises `MissingExtra`."""

    figures: str = ""
    """The module whose `FIGURES` (`nodes.figures.FiguresOf`) are told of a node's status."""

    notes: Callable[[Sequence[Mapping[str, Any]]], Iterable[ModelNote]] = lambda documents: ()
    """What nodes' status documents say of versions, for `swarm status` and the dashboard."""

    tells: Sequence[str] = ()
    """Kinds of events that nodes tell beside the core's."""

    keeps: Callable[[Mesh], Iterable[KeptStream]] = lambda mesh: ()
    """Streams at the server, which a push makes, and which are looked after as the core's are."""

    tensors_of: TensorsOf | None = None
    """What a weight version of a model version changes, {} for its base: tensors_of(mesh, info, n).
    Raises `NotFound` where it is not kept."""

    commands: Commands = field(default_factory=dict)
    """Of `swarm`, by the heading of its help and by name; `model push` is the command `push` of the
    group `model`. One of a name that the core has takes its place."""

    model_lines: Callable[[HeardMesh, Callable[[], Iterable[str]]], ModelLines] | None = None
    """What becomes of the models of these names, for people who watch."""

    source: Callable[[str], Source | None] = lambda path: None
    """What reads a model that is to be split, None where the path is not the feature's affair."""

    draws: Callable[[Manifest, Mapping[str, Path], str, Sequence[Mapping[str, Any]]], bool] = (
        lambda manifest, files, path, statuses: False
    )
    """Draws a version into a file, by its files, with what statuses of nodes say of it:
    draws(manifest, files, path, statuses). False where that is not the feature's affair. Raises
    `InvalidArgument`."""

    describes: Callable[[Manifest], Iterable[str]] = lambda manifest: ()
    """Lines that tell people of a version."""

    addition: Callable[[Given, Sequence[str]], Addition | None] = lambda given, outputs: None
    """What options of `model split` add to the model, else None. outputs: the tensors that
    --outputs names, which are then the addition's affair."""

    meaning: Callable[[ModelInfo], Meaning | None] = lambda info: None
    """What the tensors of a version mean, None where it does not say. Raises `ShardsError`."""

    codecs: Callable[[], Iterable[str]] = tuple
    """What a node with the feature reads beside tensors."""

    opens: Callable[[str], Opens | None] = lambda path: None
    """What opens such a file to be asked about, None for another file."""

    loads: Mapping[str, Prepare] = field(default_factory=dict)
    """How versions of a kind of models (`shards.parts.Kind`) are loaded, by its field: prepare(
    loading) gives what loads one, in a thread. Both raise `SwarmError` and `ShardsError`."""

    around_runs: Mapping[str, AroundStage] = field(default_factory=dict)
    """What stands around the runs of each stage of versions that have a part, by its field:
    around(the part, link, info, runs) gives what computes in the place of `runs`, which it may
    ask; both make a `nodes.stage.compute.StageRuns`. It is called once for a stage that a node
    serves, and for no other version."""

    looks: Mapping[str, PrepareLook] = field(default_factory=dict)
    """What looks at the requests of stage 1 of versions that have a part of the manifest, by its
    field: prepare(loading) gives it. Raises `SwarmError` and `ShardsError`."""

    services: Callable[[Surroundings, Notices], Iterable[Service]] = lambda around, notices: ()
    """What else clients may ask a node for; they tell the witnesses by these notices."""

    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Dataclasses of options (`nodes.cli.command`), each `module:name`, that commands of others
    get, by `up` or `model push`; such a command takes a `Given`."""

    extras: Mapping[str, str] = field(default_factory=dict)
    """The extra of the package that brings a library, by the name that is imported."""

    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Extras of the package that a command needs with an option, by `up --http`."""

    companions: Callable[[Given], Sequence[Companion]] = lambda given: ()
    """What it does in a run of `swarm up` or `swarm demo`. Raises `InvalidArgument`."""

    adds: Callable[[Given, Manifest], Mapping[str, Any]] = lambda given, manifest: {}
    """Parts of the manifest, by field, that options of `model split` ask for. Raises
    `InvalidArgument` where they do not go with the model."""

    cuts: Callable[[Given], Sequence[Sequence[str]] | None] = lambda given: None
    """The tensors behind each stage but the last, where options of `model split` say so, else None.
    Raises `InvalidArgument`."""

    pushes: Callable[[Given], Iterable[AtPush]] = lambda given: ()
    """What options of `model push` ask for. Raises `InvalidArgument`."""

    stories: Mapping[str, str] = field(default_factory=dict)
    """Of `swarm demo`, by the name of the switch that asks for it: the function `module:name` of an
    `StoryOptions`, which returns the exit code."""

    asks: Callable[[Manifest, str], Asking | None] = lambda manifest, mesh: None
    """How a version is asked in a mesh, None where that is not the feature's affair."""
