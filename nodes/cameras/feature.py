"""Edges whose sources are cameras, and the nodes that join what several of them see."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from nodes.cameras.settings import CameraOptions, JoinOptions
from nodes.extras import MissingExtra
from nodes.feature import Feature, Given, Life, NodeRole, Start
from nodes.settings import WrongSetting
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodes.cli.options import Splitting
    from nodes.config import NodeConfig
    from nodes.demo.frame import StoryOptions
    from nodes.meaning import Meaning, Opens
    from shards.manifest import Manifest
    from shards.parts import Addition
    from swarm.model import ModelInfo

JOIN = "join"


def _check(config: NodeConfig) -> None:
    join, camera = config.of(JoinOptions), config.of(CameraOptions)
    if bool(join.of) != (config.role == JOIN):
        raise InvalidArgument("--role join and --of NAME,NAME need each other")
    if join.of and config.edge.sink in join.edges:
        raise InvalidArgument(f"--sink {config.edge.sink}: a join does not hear its own results")
    if camera.masks and config.role != "edge":
        raise InvalidArgument("--mask is for cameras: --role edge --source CAMERA")
    if config.edge.places and camera.guard != "off":
        raise InvalidArgument(
            "--guard looks at one cut, and with --placement another one leaves each time: "
            "leave out one of them"
        )


def _life(config: NodeConfig) -> Life | None:
    """Raises `WrongSetting` for a mask on a source that is no camera."""
    from nodes.cameras.sources.address import is_camera

    if config.role == JOIN:
        return _as_join
    if config.role == "edge" and is_camera(config.edge.source):
        return _with_cameras
    if config.role == "edge" and config.of(CameraOptions).masks:
        raise WrongSetting(
            f"--source {config.edge.source} goes to the model as it is: --mask masks cameras alone"
        )
    return None


async def _as_join(start: Start) -> None:
    from nodes.cameras.join.join import Join, JoinCounters
    from nodes.life.node import Node
    from nodes.process import endpoints_of

    counters = JoinCounters()
    node = Node(start.config, start.started, start.on_change, counters.status)
    with endpoints_of(node):
        await Join(node, start.config, counters).run(start.stop)


async def _with_cameras(start: Start) -> None:
    """An edge whose sources are cameras, which need libraries of their own."""
    from nodes.edge.edge import EdgeCounters
    from nodes.life.node import Node
    from nodes.process import endpoints_of

    edge = start.config.edge
    try:
        from nodes.cameras.camera_edge import CameraEdge, Cameras
    except ModuleNotFoundError as error:
        text = f"--source {edge.source}: {error}: pip install 'swarm-mesh[perception]'"
        raise MissingExtra(text) from None
    counters = EdgeCounters()
    cameras = Cameras(counters)
    node = Node(start.config, start.started, start.on_change, cameras.status, start.stop.set)
    with endpoints_of(node):
        await CameraEdge(node, edge, counters, cameras).run(start.stop)


def _describes(manifest: Manifest) -> list[str]:
    from nodes.cameras.commands.tasks import task_lines

    return task_lines(manifest)


def _options() -> Mapping[str, Sequence[type]]:
    from nodes.cameras.demo.declared import CameraStory

    return {"demo": [CameraStory]}


def _stories(given: Given) -> list[Callable[[StoryOptions], int]]:
    from nodes.cameras.demo.declared import CameraStory

    options = given.of(CameraStory)
    if options is None or not options.camera:
        return []
    from nodes.cameras.demo.story import tell

    return [tell]


def _addition(options: Splitting) -> Addition | None:
    from nodes.cameras.commands.tasks import wish_of

    return wish_of(options)


def _meaning(info: ModelInfo) -> Meaning | None:
    if info.task is None:
        return None
    from nodes.cameras.meaning import TaskMeaning

    return TaskMeaning(info)


def _codecs() -> list[str]:
    from swarm.wire.picture import PICTURES

    return [] if importlib.util.find_spec("cv2") is None else [PICTURES]


def _opens(path: str) -> Opens | None:
    from nodes.cameras.commands.tasks import opened

    return opened(path)


FEATURE = Feature(
    "cameras",
    settings=[CameraOptions, JoinOptions],
    check=_check,
    roles={JOIN: NodeRole("pairs edges' results.", answers=True)},
    life=_life,
    describes=_describes,
    options=_options,
    needs={"demo --camera": ["perception"]},
    stories=_stories,
    addition=_addition,
    meaning=_meaning,
    codecs=_codecs,
    opens=_opens,
)
