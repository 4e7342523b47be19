"""Which head a model has, told from the shapes of its outputs and from what was seen of them; where
two heads could claim them, it asks.

Shapes are those at one picture: the batch axis is 1, or free (-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shards.cameras.asked import AskedTask, TaskHead
from shards.cameras.detectors import detector
from shards.cameras.seen import SeenGraph, sum_to_one
from shards.errors import TaskError
from shards.specs import TensorSpec

# Tasks of ours, by the words that the metadata of files has.
KIND_OF = {"detect": "detect", "segment": "detect", "pose": "detect", "obb": "detect"} | {
    "classify": "classify", "semantic": "segment", "depth": "depth"
}  # fmt: skip
_NOTHING = SeenGraph()


@dataclass(frozen=True)
class PictureInput:
    """The input that takes a picture. channels: 1 or 3. layout: `nchw` or `nhwc`."""

    name: str
    width: int
    height: int
    channels: int
    layout: str
    datatype: str


def picture_input(
    inputs: Sequence[TensorSpec], size: tuple[int, int] | None = None
) -> PictureInput:
    """The input that takes a picture. size: width and height, where they are free. Raises
    TaskError."""
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        shown = ", ".join(f"{spec.name} {spec}" for spec in inputs)
        raise TaskError(f"a task takes models with one picture as their input; this has {shown}")
    spec = inputs[0]
    first, last = (spec.shape[axis] in (1, 3) for axis in (1, 3))
    if first and not last:
        layout, channels, (height, width) = "nchw", spec.shape[1], spec.shape[2:]
    elif last and not first:
        layout, channels, (height, width) = "nhwc", spec.shape[3], spec.shape[1:3]
    else:
        raise TaskError(f"input {spec.name} {spec}: no axis of 1 or 3 channels, or more than one")
    if size is not None:
        if width not in (-1, size[0]) or height not in (-1, size[1]):
            raise TaskError(f"--size {size[0]}x{size[1]}: the file says {width}x{height}")
        width, height = size
    if width < 1 or height < 1:
        raise TaskError(
            f"input {spec.name} {spec} takes pictures of any size: --size 640x640 says which"
        )
    return PictureInput(spec.name, width, height, channels, layout, spec.datatype)


def tell(
    kind: str,
    size: tuple[int, int],
    outputs: Sequence[TensorSpec],
    *,
    labels: Sequence[str] = (),
    decode: str = "",
    chosen: Sequence[str] = (),
    seen: SeenGraph = _NOTHING,
) -> TaskHead:
    """The head of a model. size: width and height of its picture. labels: of the owner, or of the
    file. decode, chosen: what the owner says; the rest is told from shapes and from `seen`. Raises
    TaskError with the choices, or with the name of a head that nothing here reads."""
    asked = AskedTask(kind, decode, outputs, len(labels), seen)
    if chosen:
        known = {spec.name: spec for spec in outputs}
        if missing := [name for name in chosen if name not in known]:
            raise asked.unsure(f"there is no output {', '.join(missing)}")
    picked = [known[name] for name in chosen] if chosen else outputs
    if kind == "detect":
        return detector(asked, size, picked, labels, bool(chosen))
    if len(picked) != 1:
        raise asked.unsure(f"it has {len(picked)} outputs: --outputs names the one to read")
    (spec,) = picked
    if kind == "segment":
        return _segment(asked, spec, labels)
    if kind == "depth":
        return _depth(asked, spec)
    if kind == "read":
        return _letters(asked, spec, labels)
    trailing = spec.shape[2:]
    if len(spec.shape) < 2 or spec.shape[1] < 1 or any(dim != 1 for dim in trailing):
        rows = "; rows of scores, as text recognisers give them, are for --task read"
        raise asked.unsure(
            f"{spec.name} {spec} is not [n,{'classes' if labels else 'd'}]"
            + (rows if kind == "classify" and len(spec.shape) == 3 else "")
        )
    if kind == "embed":
        return TaskHead("embedding", (spec.name,), f"{spec.name} {spec} is a vector")
    return _classify(asked, spec, labels)


def _classify(asked: AskedTask, spec: TensorSpec, labels: Sequence[str]) -> TaskHead:
    classes, seen = spec.shape[1], asked.seen
    name = (spec.name,)
    if not spec.datatype.endswith(("FP16", "FP32", "FP64", "BF16")):
        raise asked.unread(f"{spec.name} has whole numbers, no scores, and that is")
    asked.check(classes, spec, "scores of classes")
    shown = f"{spec.name} {spec}"
    if asked.decode:
        return TaskHead(asked.decode, name, f"{shown}: {asked.decode}, as --decode says")
    if spec.name in seen.softmax | seen.sigmoid:
        maker = "Softmax" if spec.name in seen.softmax else "Sigmoid"
        return TaskHead("probabilities", name, f"{shown}: probabilities, made by a {maker}")
    if classes == 1:
        raise asked.unsure(
            "a softmax of one value is always 1, and no Sigmoid makes it a score: put one into the "
            "graph, or say that it is a score already"
        )
    if sum_to_one(seen.of(spec.name)):
        raise asked.unsure(
            "no Softmax was found, but the values of runs lie from 0 to 1 and sum to one, as "
            "probabilities do; a second softmax would make them wrong"
        )
    return TaskHead("logits", name, f"{shown}: logits, made by no Softmax")


def _segment(asked: AskedTask, spec: TensorSpec, labels: Sequence[str]) -> TaskHead:
    found, why = asked.decode, "as --decode says"
    if not found and len(spec.shape) == 3 and spec.datatype.strip("U").startswith("INT"):
        found, why = "classes", "whole numbers"
    if found == "classes":
        return TaskHead(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")
    if len(spec.shape) == 3 and not asked.decode:
        raise asked.unsure("one number a place and no classes: a depth map is for --task depth")
    if len(spec.shape) != 4:
        raise asked.unsure("a segmentation has the shape [1,classes,height,width]")
    _, first, middle, last = spec.shape
    if not found:
        of_first = first == len(labels) if labels else 0 < first < min(middle, last)
        of_last = last == len(labels) if labels else 0 < last < min(first, middle)
        if 1 in (first, last) and not labels:
            raise asked.unsure("one number a place and no classes: a depth map is for --task depth")
        if of_first == of_last:
            raise asked.unsure(
                "the classes lie along axis 1 (argmax) or axis 3 (argmax-last)",
                {"argmax": first, "argmax-last": last},
            )
        found = "argmax" if of_first else "argmax-last"
        why = f"{first if of_first else last} classes"
    classes = first if found == "argmax" else last
    if classes == 1:
        raise asked.unsure("one channel has no classes to choose from")
    asked.check(classes, spec, found)
    return TaskHead(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")


def _depth(asked: AskedTask, spec: TensorSpec) -> TaskHead:
    shape = [side for side in spec.shape[1:] if side != 1]
    if len(shape) != 2 or len(spec.shape) > 4:
        raise asked.unsure(f"{spec.name} {spec} is not [1,h,w] or [1,1,h,w]")
    if not spec.datatype.endswith(("FP16", "FP32", "FP64", "BF16")):
        raise asked.unread(f"{spec.name} has whole numbers, no depths, and that is")
    if asked.seen.said.task not in ("", "depth"):
        raise asked.unread(f"the file says that it is for {asked.seen.said.task}, and that is")
    if spec.name in asked.seen.sigmoid and not asked.decode:
        raise asked.unsure(
            "its values are made by a Sigmoid, as those of masks and maps of text are"
        )
    values = asked.seen.of(spec.name)
    sums = values is not None and sum_to_one(values.reshape(-1, values.shape[-1]))
    if (spec.name in asked.seen.softmax or sums) and not asked.decode:
        raise asked.unsure("its values sum to one along an axis, as scores of classes do")
    why = "as --decode says" if asked.decode else "a number at each place"
    return TaskHead("depth", (spec.name,), f"{spec.name} {spec}: depth, {why}")


def _letters(asked: AskedTask, spec: TensorSpec, labels: Sequence[str]) -> TaskHead:
    if len(spec.shape) != 3 or spec.shape[2] < 3:
        raise asked.unsure(f"{spec.name} {spec} is not [1,t,1+letters]")
    _, places, classes = spec.shape
    if len(labels) != classes - 1:
        raise TaskError(
            f"{spec.name} {spec} has {classes} classes: none and {classes - 1} letters, and there "
            f"are {len(labels)}: --labels FILE has a letter a line, in the order of the network; "
            "where it lacks the space that comes last, a space is added"
        )
    values = asked.seen.of(spec.name)
    if values is not None and not asked.decode:
        best = values.argmax(axis=-1)
        if (best == classes - 1).mean() > max(0.5, (best == 0).mean()):
            raise asked.unread(
                "the last class is the likeliest nearly everywhere, so it is no letter, and the "
                "first one is expected to be none: that is"
            )
    found = asked.decode
    if not found and spec.name in asked.seen.softmax:
        found = "ctc"
    elif not found and values is not None:
        are_sums = sum_to_one(values.reshape(-1, classes))
        if are_sums:
            raise asked.unsure("no Softmax was found, but the scores of a place sum to one")
        found = "ctc-logits"
    elif not found:
        raise asked.unsure("its scores may be before or behind a softmax")
    why = f"{places} places along a line, {classes - 1} letters"
    return TaskHead(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")
