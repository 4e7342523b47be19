"""What an owner says about a model's task, and what its shapes say: together they are the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shards.cameras.asked import TaskHead
from shards.cameras.decode import DECODERS, is_chosen, suppresses
from shards.cameras.heads import KIND_OF, PictureInput, picture_input, tell
from shards.cameras.pixels import FITS
from shards.cameras.seen import Said, SeenGraph
from shards.cameras.task import COLOURS, KINDS, Postprocess, Preprocess, Task
from shards.errors import TaskError
from shards.parts import ModelWithAddition
from shards.specs import TensorSpec

# (pixel * scale - mean) / std; the last ones are torchvision's, for networks trained on ImageNet.
NORMALISE: Mapping[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "none": (1.0, (0.0,), (1.0,)),
    "0..1": (1 / 255, (0.0,), (1.0,)),
    "-1..1": (1 / 255, (0.5,), (0.5,)),
    "imagenet": (1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_NOTHING = SeenGraph()
_GRAY = 128  # nought, of pixels from -1 to 1: what stands behind a line
ULTRAFACE = (1.0, (127.0,), (128.0,))  # Linzaier/Ultra-Light-Fast-Generic-Face-Detector-1MB


@dataclass(frozen=True)
class Wish:
    """An empty field is told from the model's shapes, or is what is usual for its head.

    decode, outputs: see `Postprocess`. size: width and height of the model's picture, where they
    are free in the file. fit, colours: see `Preprocess`. normalise: a name of `NORMALISE`, or
    MEAN/STD in values of pixels, as `127/128`, with one number or one for each channel. bake:
    whether the graph gets the arithmetic.
    """

    kind: str
    labels: tuple[str, ...] = ()
    decode: str = ""
    outputs: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    fit: str = ""
    colours: str = ""
    normalise: str = ""
    threshold: float | None = None
    iou: float | None = None
    top: int | None = None
    bake: bool = True

    def __post_init__(self) -> None:
        """Raises TaskError for a word that is none of the known ones."""
        _one_of("--task", self.kind, KINDS)
        if self.decode:
            _one_of("--decode", self.decode, tuple(DECODERS[self.kind]))
        if self.fit:
            _one_of("--fit", self.fit, FITS)
        if self.colours:
            _one_of("--colours", self.colours, COLOURS)

    def add(self, model: Any, lighter: bytes | None) -> ModelWithAddition:
        """As of `shards.parts.Addition`: a model gets this task. Raises TaskError, SplitError."""
        from shards.cameras.graph.give import add_task  # only who splits has onnx

        return add_task(self, model, lighter)


def settle(
    wish: Wish,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    seen: SeenGraph = _NOTHING,
) -> tuple[Task, tuple[str, ...]]:
    """The task of a model whose arithmetic lies outside of it, and notes on what was told from
    shapes and what was taken as usual.

    seen: what the file and its runs tell beyond shapes. Raises TaskError, which names the choices,
    where they do not tell.
    """
    said = seen.said
    told = KIND_OF.get(said.task, wish.kind)
    if told != wish.kind and wish.kind != "embed" and not wish.decode:
        raise TaskError(
            f"--task {wish.kind}: the file's metadata says that it is for {said.task}, which is "
            f"--task {told}; --decode says otherwise"
        )
    labels = _letters(wish, said, outputs) if wish.kind == "read" else wish.labels or said.labels
    labels = () if wish.kind in ("embed", "depth") else labels
    picture = picture_input(inputs, wish.size)
    head = tell(
        wish.kind,
        (picture.width, picture.height),
        outputs,
        labels=labels,
        decode=wish.decode,
        chosen=wish.outputs,
        seen=seen,
    )
    notes = [*said.notes, head.why]
    if labels and not wish.labels and wish.kind == "read":
        notes.append(f"the file's metadata names the {len(labels)} letters")
    elif labels and not wish.labels:
        notes.append(f"the file's metadata names the {len(labels)} classes")
    # As their authors train them.
    usual_colours = "bgr" if head.decode in ("yolox", "db", "ctc", "ctc-logits") else "rgb"
    colours = wish.colours or ("gray" if picture.channels == 1 else usual_colours)
    if (colours == "gray") != (picture.channels == 1):
        raise TaskError(f"{colours} does not fit an input of {picture.channels} channels")
    if picture.datatype not in ("UINT8", "FP16", "FP32"):
        raise TaskError(f"input {picture.name!r} is {picture.datatype}: pixels are UINT8 or floats")
    (scale, mean, std), usual = _normalise(wish, head, picture, said.normalise)
    if usual:
        notes.append(f"pixels become {usual}, as is usual: --normalise says otherwise")
    task = Task(
        kind=wish.kind,
        preprocess=Preprocess(
            input=picture.name,
            width=picture.width,
            height=picture.height,
            fit=wish.fit or _fit(wish, head, said),
            colours=colours,
            layout=picture.layout,
            datatype=picture.datatype,
            scale=scale,
            mean=mean,
            std=std,
            fill=_GRAY if wish.kind == "read" else 114,
        ),
        postprocess=_postprocess(wish, head),
        labels=_labels(labels, head),
    )
    return Task.of(task.to_doc()), tuple(notes)


def _postprocess(wish: Wish, head: TaskHead) -> Postprocess:
    usual = Postprocess(head.decode, head.outputs)
    if head.decode == "ultraface":
        usual = replace(usual, threshold=0.7, iou=0.3)
    if wish.kind == "classify":
        usual = replace(usual, top=5)
    if wish.kind == "detect" and not suppresses(head.decode):
        usual = replace(usual, iou=1.0)
    if head.decode == "db":
        usual = replace(usual, threshold=0.5)
    if wish.iou is not None and (is_chosen(head.decode) or head.decode == "db"):
        raise TaskError(f"--iou: the boxes of {head.decode} have been chosen already")
    return Postprocess(
        head.decode,
        head.outputs,
        usual.threshold if wish.threshold is None else wish.threshold,
        usual.iou if wish.iou is None else wish.iou,
        usual.top if wish.top is None else wish.top,
        head.more,
        head.each,
    )


def _fit(wish: Wish, head: TaskHead, said: Said) -> str:
    """As the authors of a head do it."""
    if wish.kind == "read":
        return "line"
    if head.decode == "yolox":
        return "corner"
    is_boxed = head.decode.startswith(("yolo", "db")) or said.task == "semantic"
    return "letterbox" if is_boxed else "stretch"


def _letters(wish: Wish, said: Said, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """The letters of a recogniser, of class 1 on: with the space that Paddle adds at the end, where
    that makes them as many as there are classes."""
    letters = wish.labels or said.letters or said.labels
    classes = {spec.shape[2] for spec in outputs if len(spec.shape) == 3}
    return (*letters, " ") if len(letters) + 2 in classes else letters


def _labels(labels: tuple[str, ...], head: TaskHead) -> tuple[str, ...]:
    if not labels and head.decode == "ultraface":
        return ("face",)
    return labels[1:] if head.names_background else labels


def _normalise(
    wish: Wish, head: TaskHead, picture: PictureInput, known: str
) -> tuple[tuple[float, tuple[float, ...], tuple[float, ...]], str]:
    """Scale, mean and std, and the name of what is only usual, "" where it is known. known: what
    the file's exporter always does, "" where nothing says it."""
    if picture.datatype == "UINT8":
        if wish.normalise not in ("", "none"):
            raise TaskError("--normalise: the model takes bytes, and normalises them itself")
        return NORMALISE["none"], ""
    if wish.normalise in NORMALISE:
        return NORMALISE[wish.normalise], ""
    if wish.normalise:
        return (1.0, *_numbers(wish.normalise)), ""
    if head.decode == "ultraface":
        return ULTRAFACE, ""
    if head.decode == "yolox":
        return NORMALISE["none"], ""
    if head.decode.startswith("yolo"):
        return NORMALISE["0..1"], ""
    if known:
        return NORMALISE[known], ""
    if head.decode == "detr" or set(head.outputs) == {"dets", "labels"}:  # RF-DETR's exporter
        return NORMALISE["imagenet"], ""
    if head.decode in ("db", "ctc", "ctc-logits"):
        return NORMALISE["-1..1"], "-1..1"
    name = "imagenet" if picture.channels == 3 and wish.kind != "detect" else "0..1"
    return NORMALISE[name], name


def _numbers(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = ([float(value) for value in part.split(",")] for part in text.split("/"))
    except ValueError:
        raise TaskError(
            f"--normalise {text!r}: it is {', '.join(NORMALISE)}, or MEAN/STD in values of pixels, "
            "as 127/128"
        ) from None
    return tuple(mean), tuple(std)


def _one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise TaskError(f"{option} {value!r}: it is one of {', '.join(known)}")
