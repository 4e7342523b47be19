"""A model's task on the command line: what an owner says, what is told, a picture as an input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import swarm
from nodes.cameras.meaning import TaskMeaning, TaskReading
from nodes.cli.command import option, seldom
from nodes.feature import Given
from nodes.meaning import Opens
from shards.cameras import Task, read_picture
from shards.cameras.decode import READINGS, suppresses
from shards.cameras.picture import SUFFIXES
from shards.cameras.wish import Wish
from shards.errors import ManifestError
from shards.manifest import Manifest
from swarm.errors import InvalidArgument, PermissionDenied
from swarm.wire.messages import Result as Answer


@dataclass(frozen=True)
class TaskOptions:
    """Of `swarm model split` and `swarm up`."""

    task: str = option(
        "",
        "What the model makes of a picture: detect, classify, segment, depth, read or "
        "embed. Then it takes pictures, and answers boxes, classes, text or a vector.",
    )
    labels: str = seldom("", "With --task: names of the classes, as cat,dog, or a file of lines.")
    bake: bool = seldom(
        True, "With --task: put its arithmetic into the graph: boxes travel, not scores."
    )
    decode: str = seldom("", "With --task: the model's head, where its shapes do not tell.")
    size: str = seldom("", "With --task: the model's picture, as 640x640, where the file says any.")
    fit: str = seldom("", "With --task: stretch, letterbox, corner or line: where a picture lies.")
    colours: str = seldom("", "With --task: rgb, bgr or gray.")
    normalise: str = seldom(
        "", "With --task: none, 0..1, -1..1, imagenet, or MEAN/STD of pixels, as 127/128."
    )
    threshold: float = seldom(-1.0, "With --task detect: scores above it count; -1: usual.")
    iou: float = seldom(-1.0, "With --task detect: of boxes that overlap more, one stays.")
    top: int = seldom(0, "With --task: the most boxes, or the most classes; 0: usual.")


def wish_of(given: Given, outputs: Sequence[str]) -> Wish | None:
    """What is added to a model whose owner tells its task. outputs: those that are read. Raises
    `InvalidArgument` and `TaskError`."""
    options = given.of(TaskOptions)
    if options is None:
        return None
    if not options.task:
        if options.labels or options.decode:
            raise InvalidArgument("--labels and --decode belong to --task detect|classify|…")
        return None
    size = re.fullmatch(r"(\d{1,5})x(\d{1,5})", options.size)
    if options.size and not size:
        raise InvalidArgument(f"--size {options.size!r}: it is WIDTHxHEIGHT, as 640x480")
    return Wish(
        kind=options.task,
        labels=_labels(options.labels),
        decode=options.decode,
        outputs=tuple(outputs),
        size=(int(size[1]), int(size[2])) if size else None,
        fit=options.fit,
        colours=options.colours,
        normalise=options.normalise,
        threshold=None if options.threshold < 0 else options.threshold,
        iou=None if options.iou < 0 else options.iou,
        top=options.top or None,
        bake=options.bake,
    )


def _labels(text: str) -> tuple[str, ...]:
    """Of a file with one a line, or of a list with commas."""
    try:
        if text and Path(text).is_file():
            lines = Path(text).read_text(encoding="utf-8").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"--labels {text}: {error}") from None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def task_lines(manifest: Manifest) -> list[str]:
    """The task of a manifest, for people; what was taken as usual when it was split, too."""
    if "task" not in manifest.parts:
        return []
    try:
        task = Task.of(manifest.parts["task"])
    except ManifestError as error:
        return [f"task: not read: {error}"]
    pre, post = task.preprocess, task.postprocess
    where = "in the graph" if task.baked else "outside the graph"
    normalised = (
        "" if pre.datatype == "UINT8" else f", (pixel * {pre.scale:.6g} - {_few(pre.mean)})"
    )
    normalised += "" if pre.datatype == "UINT8" else f" / {_few(pre.std)}"
    lines = [
        f"task: {task.kind}, its arithmetic {where}",
        f"  takes a picture, {pre.fit} to {pre.width}x{pre.height}, {pre.colours}{normalised}",
        f"  reads {', '.join(post.outputs)} as {post.decode}{_limits(task)}",
        f"  {post.decode}: {READINGS[post.decode]}",
    ]
    if task.labels:
        more = f" … ({len(task.labels)})" if len(task.labels) > 8 else ""
        lines.append(f"  labels: {', '.join(task.labels[:8])}{more}")
    return lines


def _limits(task: Task) -> str:
    post = task.postprocess
    if post.decode == "db":
        return f", scores above {post.threshold:g}, {post.top} at most"
    if task.kind == "detect" and not suppresses(post.decode) and post.iou >= 1:
        return f", scores above {post.threshold:g}, {post.top} at most, overlapping boxes stay"
    if task.kind == "detect":
        return f", scores above {post.threshold:g}, overlap up to {post.iou:g}, {post.top} at most"
    return f", the {post.top} likeliest" if task.kind == "classify" else ""


def _few(numbers: tuple[float, ...]) -> str:
    shown = ", ".join(f"{number:g}" for number in numbers)
    return shown if len(numbers) == 1 else f"({shown})"


@dataclass(frozen=True)
class AskedPicture:
    """A picture that is asked about. shape: of its array. inputs: the model's."""

    shape: tuple[int, ...]
    inputs: dict[str, np.ndarray]

    async def read(self, client: swarm.Mesh, answer: Answer) -> TaskReading:
        """What an answer says: by the task of the version that answered. Raises `ShardsError`,
        `NotFound`, `Unavailable`."""
        info = await client.model(f"{answer.model}@{answer.version}")
        return TaskMeaning(info).read(answer.outputs, self.shape)


def opened(path: str) -> Opens | None:
    """What opens a picture; None where a file's name is not that of one."""
    if Path(path).suffix.lower() not in SUFFIXES:
        return None
    return lambda client, model: open_picture(client, model, path)


async def open_picture(client: swarm.Mesh, model: str, path: str) -> AskedPicture:
    """Raises `PictureError`, `ManifestError` for a model without a task, `NotFound`,
    `Unavailable`, `PermissionDenied`."""
    image = read_picture(path)
    try:
        info = await client.model(model)
    except PermissionDenied as error:
        raise PermissionDenied(f"the model's task: {error}; give --input FILE.npz") from None
    return AskedPicture(image.shape, Task.of(info.task).prepare(image))
