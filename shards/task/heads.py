"""Which head a model has, told from the shapes of its outputs and from what was seen of them; where
two heads could claim them, it asks.

Shapes are those at one picture: the batch axis is 1, or free (-1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shards.errors import TaskError
from shards.specs import TensorSpec
from shards.task.decode import DECODERS, STRIDES
from shards.task.seen import Seen, are_shares, span, sum_to_one

_YOLO_ANCHORS = 3  # of version 5, in each cell
_ULTRAFACE = ((8, 3), (16, 2), (32, 2), (64, 3))  # pixels to a cell, priors in each cell
_COCO = 80  # classes of the data set that most detectors are trained on
_BACKGROUND = ("background", "__background__", "bg")
# Tasks that the metadata of a file names, and what they give: no head reads it.
_UNREAD = {
    "segment": "masks of single objects",
    "pose": "keypoints",
    "obb": "oriented boxes",
    "depth": "depth maps",
}
_NOTHING = Seen()


@dataclass(frozen=True)
class PictureInput:
    """The input that takes a picture. channels: 1 or 3. layout: `nchw` or `nhwc`."""

    name: str
    width: int
    height: int
    channels: int
    layout: str
    datatype: str


@dataclass(frozen=True)
class Head:
    """decode, outputs: see `shards.task.task.Postprocess`. why: a sentence for people.
    names_background: whether the owner's first label is the background's."""

    decode: str
    outputs: tuple[str, ...]
    why: str
    names_background: bool = False


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
    seen: Seen = _NOTHING,
) -> Head:
    """The head of a model. size: width and height of its picture. labels: of the owner, or of the
    file. decode, chosen: what the owner says; the rest is told from shapes and from `seen`. Raises
    TaskError with the choices, or with the name of a head that nothing here reads."""
    asked = _Asked(kind, decode, outputs, len(labels), seen)
    if chosen:
        known = {spec.name: spec for spec in outputs}
        if missing := [name for name in chosen if name not in known]:
            raise asked.unsure(f"there is no output {', '.join(missing)}")
    picked = [known[name] for name in chosen] if chosen else outputs
    if kind == "detect":
        return _detect(asked, size, picked, labels, bool(chosen))
    if len(picked) != 1:
        raise asked.unsure(f"it has {len(picked)} outputs: --outputs names the one to read")
    (spec,) = picked
    if kind == "segment":
        return _segment(asked, spec, labels)
    trailing = spec.shape[2:]
    if len(spec.shape) < 2 or spec.shape[1] < 1 or any(dim != 1 for dim in trailing):
        rows = "; rows of scores, as text recognisers give them, are not read"
        raise asked.unsure(
            f"{spec.name} {spec} is not [n,{'classes' if labels else 'd'}]"
            + (rows if kind == "classify" and len(spec.shape) == 3 else "")
        )
    if kind == "embed":
        return Head("embedding", (spec.name,), f"{spec.name} {spec} is a vector")
    return _classify(asked, spec, labels)


@dataclass(frozen=True)
class _Asked:
    """What was asked, for errors. labels: how many the owner or the file names."""

    kind: str
    decode: str
    outputs: Sequence[TensorSpec]
    labels: int
    seen: Seen

    @property
    def shown(self) -> str:
        return ", ".join(f"{spec.name} {spec}" for spec in self.outputs)

    def unsure(self, why: str, counts: Mapping[str, int] | None = None) -> TaskError:
        """counts: the classes that the outputs have, by how they are read."""
        if self.labels and counts and self.labels not in counts.values():
            read = ", ".join(f"{count} as {name}" for name, count in counts.items())
            why = f"{why}; {self.named} fit no way of reading it: {read}"
        choices = ", ".join(DECODERS[self.kind])
        return TaskError(
            f"the shapes do not tell how {self.kind} reads {self.shown}: {why}. "
            f"--decode says it: {choices}"
        )

    def unread(self, what: str) -> TaskError:
        """For a head that is known by name, and that no choice would read."""
        return TaskError(f"{self.shown}: {what} not read by --task {self.kind} or any other")

    @property
    def named(self) -> str:
        return f"{self.labels} label{'' if self.labels == 1 else 's'}"

    def check(self, classes: int, spec: TensorSpec, decode: str) -> None:
        """Raises TaskError where the labels are not as many as the classes."""
        if self.labels and classes >= 0 and self.labels != classes:
            raise TaskError(
                f"{self.named} for {classes} classes: {spec.name} {spec} has {classes} of them as "
                f"{decode}. --labels names each; where the file's own names do not fit, the model "
                f"may be none for --task {self.kind}"
            )


def _classify(asked: _Asked, spec: TensorSpec, labels: Sequence[str]) -> Head:
    classes, seen = spec.shape[1], asked.seen
    name = (spec.name,)
    if not spec.datatype.endswith(("FP16", "FP32", "FP64", "BF16")):
        raise asked.unread(f"{spec.name} has whole numbers, no scores, and that is")
    asked.check(classes, spec, "scores of classes")
    shown = f"{spec.name} {spec}"
    if asked.decode:
        return Head(asked.decode, name, f"{shown}: {asked.decode}, as --decode says")
    if spec.name in seen.softmax | seen.sigmoid:
        maker = "Softmax" if spec.name in seen.softmax else "Sigmoid"
        return Head("probabilities", name, f"{shown}: probabilities, made by a {maker}")
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
    return Head("logits", name, f"{shown}: logits, made by no Softmax")


def _detect(
    asked: _Asked,
    size: tuple[int, int],
    outputs: Sequence[TensorSpec],
    labels: Sequence[str],
    in_order: bool,
) -> Head:
    task = asked.seen.said.task
    if task in _UNREAD:
        raise asked.unread(f"the file says it is for {task}: {_UNREAD[task]} are")
    wanted = DECODERS["detect"].get(asked.decode)
    if wanted is not None and len(outputs) != wanted:
        raise asked.unsure(f"{asked.decode} reads {wanted}: --outputs names them in its order")
    has_rows = any(len(spec.shape) == 3 for spec in asked.outputs)
    for spec in asked.outputs:
        if len(spec.shape) == 4 and has_rows and not asked.decode:
            raise asked.unread(
                f"{spec.name} {spec} has the shape of masks' prototypes, {spec.shape[1]} of each "
                "box's values weigh them, and instance segmentation is"
            )
    if any(len(spec.shape) not in (2, 3) for spec in outputs):
        raise asked.unsure("a head has the shape [1,n,m]")
    if len(outputs) == 1:
        return _yolo(asked, size, outputs[0])
    if len(outputs) not in (2, 3):
        raise asked.unsure(f"{len(outputs)} outputs: --outputs names those to read")
    return _ssd(asked, size, list(outputs), labels, in_order)


def _yolo(asked: _Asked, size: tuple[int, int], spec: TensorSpec) -> Head:
    if len(spec.shape) != 3:
        raise asked.unsure("a head has the shape [1,n,m]")
    _, rows, columns = spec.shape
    cells = {sum((size[0] // s) * (size[1] // s) for s in strides) for strides in STRIDES}
    if asked.decode == "yolo-end2end" or (not asked.decode and _is_end_to_end(asked, size, spec)):
        return _end_to_end(asked, spec)
    counts = {"yolo-v8": rows - 4, "yolo-v5": columns - 5, "yolox": columns - 5}
    if asked.decode and asked.decode not in counts:
        raise asked.unsure(f"{asked.decode} reads {DECODERS['detect'][asked.decode]} outputs")
    found, why = asked.decode, "as --decode says"
    if not found:
        of_three = rows % _YOLO_ANCHORS == 0 and rows // _YOLO_ANCHORS in cells and columns > 5
        if columns in cells and rows > 4 and of_three:
            raise asked.unsure("both of its axes may count cells", counts)
        if columns in cells and rows > 4:
            found, why = "yolo-v8", f"{columns} cells, one box each"
        elif of_three:
            found, why = "yolo-v5", f"{rows // _YOLO_ANCHORS} cells, three boxes each"
        elif rows in cells:
            found, why = _by_cell(asked, size, spec, counts), f"{rows} cells, one box each"
        else:
            raise asked.unsure(f"{size[0]}x{size[1]} pixels have {min(cells)} cells", counts)
    asked.check(counts[found], spec, found)
    if found == "yolox" and rows != min(cells):
        raise asked.unsure(f"yolox has {min(cells)} boxes at {size[0]}x{size[1]} pixels", counts)
    if not asked.decode:
        _check_yolo(asked, size, spec, found, counts[found])
    return Head(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")


def _by_cell(
    asked: _Asked, size: tuple[int, int], spec: TensorSpec, counts: Mapping[str, int]
) -> str:
    """`yolo-v5` where centres run over the picture, `yolox` where they stay by their cells."""
    values = asked.seen.of(spec.name)
    if values is not None and spec.shape[2] > 5 and are_shares(values[..., 4:]):
        furthest, least_side = np.abs(values[..., :2]).max(), values[..., 2:4].min()
        if furthest > min(size) / 2 and least_side >= 0:
            return "yolo-v5"
        if furthest < min(size) / 8 and least_side < 0:  # logarithms
            return "yolox"
    raise asked.unsure(
        "one box a cell along axis 1 may be decoded (yolo-v5), or count in cells (yolox)", counts
    )


def _is_end_to_end(asked: _Asked, size: tuple[int, int], spec: TensorSpec) -> bool:
    """Whether the rows are corners in pixels, a score and a class each, as far as values show it.
    Raises TaskError where more values stand behind those of a row, or corners are in doubt."""
    values = asked.seen.of(spec.name)
    if values is None or values.ndim != 3 or spec.shape[2] < 6:
        return False
    boxes, scores, classes = values[..., :4], values[..., 4], values[..., 5]
    whole = bool((classes == np.rint(classes)).all() and classes.min() >= 0)
    if not whole or not are_shares(scores) or not classes.any():
        return False
    if spec.shape[2] > 6:
        raise asked.unread(
            f"rows of a box, a score, a class and {spec.shape[2] - 6} more values (keypoints, an "
            "angle, or a mask's weights) are"
        )
    in_order = (boxes[..., 2:] >= boxes[..., :2]).all(axis=-1).mean()
    if boxes.max() <= 2 < min(size) or in_order < 0.5:
        raise asked.unsure(
            f"rows of a box, a score and a class, but the boxes run {span(boxes)}, and are no "
            "corners in pixels (yolo-end2end)"
        )
    return True


def _end_to_end(asked: _Asked, spec: TensorSpec) -> Head:
    if spec.shape[2] != 6:
        raise asked.unsure("yolo-end2end reads [1,n,6]: a box, a score and a class")
    values = asked.seen.of(spec.name)
    largest = -1 if values is None else int(values[..., 5].max())
    if asked.labels and largest >= asked.labels:
        raise TaskError(
            f"{asked.named}, but {spec.name} {spec} answers class {largest} on a synthetic picture"
        )
    why = "as --decode says" if asked.decode else "corners, a score and a class each"
    return Head("yolo-end2end", (spec.name,), f"{spec.name} {spec}: yolo-end2end, {why}")


def _check_yolo(
    asked: _Asked, size: tuple[int, int], spec: TensorSpec, decode: str, classes: int
) -> None:
    """Raises TaskError unless all values behind a box are scores, as far as is seen, and something
    beside the shape says how many classes there are: keypoints, angles and the weights of masks
    stand in the same place."""
    values = asked.seen.of(spec.name)
    if values is not None and values.ndim == 3:
        values = values if decode == "yolo-v8" else values.transpose(0, 2, 1)
        boxes, scores = values[:, :4], values[:, 4:]
        if not are_shares(scores):
            raise asked.unsure(
                f"the values behind the four of a box run {span(scores)} on a synthetic picture, "
                "so they are not all scores from 0 to 1: keypoints (pose), oriented boxes and "
                "masks stand there too, and are not read"
            )
        if decode != "yolox" and boxes.max() <= 2 < min(size):
            raise asked.unsure(
                f"the boxes run {span(boxes)} on a synthetic picture, as shares do, and {decode} "
                "reads pixels"
            )
    if not asked.labels and classes not in (1, _COCO):
        raise asked.unsure(
            f"it may be a detector of {classes} classes, or one of keypoints (pose), oriented "
            f"boxes or masks, which are not read: --labels with {classes} names says the first"
        )


def _ssd(
    asked: _Asked,
    size: tuple[int, int],
    outputs: list[TensorSpec],
    labels: Sequence[str],
    in_order: bool,
) -> Head:
    if not in_order:
        outputs = _ordered(asked, outputs)
    boxes, scores = outputs[:2]
    may_be_detr = len(outputs) == 2 and not asked.decode and _is_detr(asked, boxes, scores)
    if asked.decode == "rt-detr" or may_be_detr:
        if boxes.shape[-1] != 4 or scores.shape[:-1] != boxes.shape[:-1]:
            raise asked.unsure("boxes [1,n,4] and logits [1,n,classes] are expected")
        asked.check(scores.shape[-1], scores, "rt-detr")
        why = "as --decode says" if asked.decode else "centres in shares, and logits"
        pair = (boxes.name, scores.name)
        shown = f"{boxes.name} {boxes}, {scores.name} {scores}"
        return Head("rt-detr", pair, f"{shown}: rt-detr, {why}")
    if boxes.shape[-1] != 4 or scores.shape[:-1] != boxes.shape[:-1] or scores.shape[-1] < 2:
        raise asked.unsure("boxes [1,n,4] and scores [1,n,1+classes] are expected")
    classes = scores.shape[-1] - 1
    names_background = len(labels) == classes + 1 and labels[0].lower() in _BACKGROUND
    if not names_background:
        asked.check(classes, scores, "scores of a background and classes")
    found, why = asked.decode, "as --decode says"
    priors = sum(
        -(-size[0] // pixels) * -(-size[1] // pixels) * each for pixels, each in _ULTRAFACE
    )
    if not found and len(outputs) == 3:
        found, why = "ssd-anchors", f"{outputs[2].name} {outputs[2]} are anchors"
    elif not found and classes == 1 and boxes.shape[1] == priors:
        found, why = "ultraface", f"{priors} priors and one class"
    elif not found:
        raise asked.unsure(
            "boxes may be corners in shares (ssd), centres in shares beside logits (rt-detr), or "
            "offsets that need anchors"
        )
    values = asked.seen.of(scores.name)
    if not asked.decode and values is not None and not are_shares(values):
        raise asked.unsure(
            f"the scores run {span(values)} on a synthetic picture, and {found} reads shares, "
            "after a softmax"
        )
    names = tuple(spec.name for spec in outputs)
    shown = ", ".join(f"{spec.name} {spec}" for spec in outputs)
    return Head(found, names, f"{shown}: {found}, {why}", names_background)


def _is_detr(asked: _Asked, boxes: TensorSpec, scores: TensorSpec) -> bool:
    """Whether the boxes are shares that are no corners, beside logits of as many classes as there
    are labels, or of COCO's: DETR itself has one more, for no object, and a softmax."""
    found, raw = asked.seen.of(boxes.name), asked.seen.of(scores.name)
    if found is None or raw is None:
        return False
    if boxes.shape[-1] != 4 or scores.shape[:-1] != boxes.shape[:-1] or are_shares(raw):
        return False
    are_corners = bool((found[..., 2:] >= found[..., :2]).all())
    if are_corners or not are_shares(found):
        return False
    return scores.shape[-1] == (asked.labels or _COCO)


def _ordered(asked: _Asked, outputs: list[TensorSpec]) -> list[TensorSpec]:
    """Boxes, scores, anchors."""
    constant = asked.seen.constant
    anchors = [s for s in outputs if s.name in constant or len(s.shape) == 2]
    rest = [s for s in outputs if s not in anchors]
    fours = [s for s in rest if s.shape[-1] == 4]
    if len(rest) != 2 or len(anchors) != len(outputs) - 2 or len(fours) != 1:
        raise asked.unsure("--outputs names boxes, scores and anchors, in this order")
    scores = rest[1] if rest[0] is fours[0] else rest[0]
    return [fours[0], scores, *anchors]


def _segment(asked: _Asked, spec: TensorSpec, labels: Sequence[str]) -> Head:
    found, why = asked.decode, "as --decode says"
    if not found and len(spec.shape) == 3 and spec.datatype.strip("U").startswith("INT"):
        found, why = "classes", "whole numbers"
    if found == "classes":
        return Head(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")
    if len(spec.shape) == 3 and not asked.decode:
        raise asked.unread("one number a place and no classes, as a depth map has, is")
    if len(spec.shape) != 4:
        raise asked.unsure("a segmentation has the shape [1,classes,height,width]")
    _, first, middle, last = spec.shape
    if not found:
        of_first = first == len(labels) if labels else 0 < first < min(middle, last)
        of_last = last == len(labels) if labels else 0 < last < min(first, middle)
        if 1 in (first, last) and not labels:
            raise asked.unread(
                "one number a place and no classes, as a depth map or a mask has, is"
            )
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
    return Head(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")
