"""What a model's metadata tells about its outputs."""

from __future__ import annotations

from onnx import ModelProto

from shards.cameras.seen import Said
from shards.cameras.task import MOST_LABELS, MOST_LETTERS
from shards.graph.metadata import MOST_TEXT, Metadata, picture_sides


def said_by(model: ModelProto) -> Said:
    """What the metadata says. An entry that cannot be read is left out, and named in `notes`."""
    said = Metadata(model)
    end = " end2end" if said.text("end2end") == "True" else ""
    return Said(
        task=said.text("task").strip().lower(),
        labels=said.read("names", _names, ()),
        size=said.read("imgsz", picture_sides, None),
        normalise="0..1" if said.text("author") == "Ultralytics" else "",
        stride=said.read("stride", _stride, 0),
        points=said.read("kpt_shape", _points, None),
        head=said.text("head")[:MOST_LETTERS] + end,
        letters=tuple(said.text("character")[:MOST_TEXT].splitlines())[:MOST_LABELS],
        notes=tuple(said.notes),
    )


def _names(value: object) -> tuple[str, ...]:
    """Of {0: 'person', 1: …} or ['person', …]. Raises ValueError."""
    if isinstance(value, dict):
        if sorted(value) != list(range(len(value))):
            raise ValueError("classes are counted from 0")
        value = [value[index] for index in range(len(value))]
    if not isinstance(value, list | tuple) or len(value) > MOST_LABELS:
        raise ValueError("no list of names")
    names = tuple(str(name).strip() for name in value)
    if not all(0 < len(name) <= MOST_LETTERS for name in names):
        raise ValueError("an empty or a long name")
    return names


def _stride(value: object) -> int:
    """The largest. Raises ValueError."""
    strides = value if isinstance(value, list | tuple) else [value]
    if not strides or not all(isinstance(each, int) and 0 < each <= 1024 for each in strides):
        raise ValueError("no pixels")
    return int(max(strides))


def _points(value: object) -> tuple[int, int]:
    """How many keypoints, and numbers of each. Raises ValueError."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("no two numbers")
    count, each = value
    if not isinstance(count, int) or not 0 < count <= 1024 or each not in (2, 3):
        raise ValueError("no keypoints")
    return count, each
