"""Edges whose sources are cameras, and the nodes that join what several of them see."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from nodes.cameras.settings import CameraOptions, JoinOptions
from nodes.feature import Feature, Life, MissingExtra, NodeRole, Start, later
from nodes.settings import WrongSetting
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.config import NodeConfig
    from nodes.meaning import Meaning
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


def _meaning(info: ModelInfo) -> Meaning | None:
    if info.task is None:
        return None
    from nodes.cameras.meaning import TaskMeaning

    return TaskMeaning(info)


def _codecs() -> list[str]:
    from swarm.wire.picture import PICTURES

    return [] if importlib.util.find_spec("cv2") is None else [PICTURES]


FEATURE = Feature(
    "cameras",
    figures="nodes.cameras.figures",
    extras=dict.fromkeys(["av", "cv2", "linuxpy"], "perception"),
    settings=[CameraOptions, JoinOptions],
    check=_check,
    roles={JOIN: NodeRole("pairs edges' results.", answers=True)},
    life=_life,
    describes=later("nodes.cameras.commands.tasks:task_lines"),
    options={
        "demo": ["nodes.cameras.demo.declared:CameraStory"],
        "up": ["nodes.cameras.commands.tasks:TaskOptions"],
        "model split": ["nodes.cameras.commands.tasks:TaskOptions"],
    },
    needs={"demo --camera": ["perception"]},
    stories={"camera": "nodes.cameras.demo.story:tell"},
    addition=later("nodes.cameras.commands.tasks:wish_of"),
    meaning=_meaning,
    codecs=_codecs,
    opens=later("nodes.cameras.commands.tasks:opened"),
)
