"""Which head a model has, told from the shapes of its outputs; where they do not tell, it asks.

Shapes are those at one picture: the batch axis is 1, or free (-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shards.errors import TaskError
from shards.specs import TensorSpec
from shards.task.decode import DECODERS

# Pixels of the model's picture to a cell, of YOLO's three scales and of the four of its P6 models.
_YOLO_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_YOLO_ANCHORS = 3  # of version 5, in each cell
_ULTRAFACE = ((8, 3), (16, 2), (32, 2), (64, 3))  # pixels to a cell, priors in each cell
_BACKGROUND = ("background", "__background__", "bg")


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
    constant: frozenset[str] = frozenset(),
    softmax: frozenset[str] = frozenset(),
) -> Head:
    """The head of a model. size: width and height of its picture. decode, chosen: what the owner
    says; the rest is told from shapes. constant, softmax: see `shards.task.wish.settle`. Raises
    TaskError with the choices."""
    asked = _Asked(kind, decode, outputs)
    if chosen:
        known = {spec.name: spec for spec in outputs}
        if missing := [name for name in chosen if name not in known]:
            raise asked.unsure(f"there is no output {', '.join(missing)}")
        outputs = [known[name] for name in chosen]
    if kind == "detect":
        return _detect(asked, size, outputs, labels, bool(chosen), constant)
    if len(outputs) != 1:
        raise asked.unsure(f"it has {len(outputs)} outputs: --outputs names the one to read")
    (spec,) = outputs
    if kind == "segment":
        return _segment(asked, spec, labels)
    trailing = spec.shape[2:]
    if len(spec.shape) < 2 or spec.shape[1] < 1 or any(dim != 1 for dim in trailing):
        raise asked.unsure(f"{spec.name} {spec} is not [n,{'classes' if labels else 'd'}]")
    if kind == "embed":
        return Head("embedding", (spec.name,), f"{spec.name} {spec} is a vector")
    _check_labels(labels, spec.shape[1], asked)
    told = "probabilities" if spec.name in softmax else "logits"
    why = "made by a Softmax" if spec.name in softmax else "made by no Softmax"
    return Head(decode or told, (spec.name,), f"{spec.name} {spec}: {decode or told}, {why}")


@dataclass(frozen=True)
class _Asked:
    """What was asked, for errors."""

    kind: str
    decode: str
    outputs: Sequence[TensorSpec]

    def unsure(self, why: str) -> TaskError:
        shown = ", ".join(f"{spec.name} {spec}" for spec in self.outputs)
        choices = ", ".join(DECODERS[self.kind])
        return TaskError(
            f"the shapes do not tell how {self.kind} reads {shown}: {why}. "
            f"--decode says it: {choices}"
        )


def _detect(
    asked: _Asked,
    size: tuple[int, int],
    outputs: Sequence[TensorSpec],
    labels: Sequence[str],
    in_order: bool,
    constant: frozenset[str],
) -> Head:
    wanted = DECODERS["detect"].get(asked.decode)
    if wanted is not None and len(outputs) != wanted:
        raise asked.unsure(f"{asked.decode} reads {wanted}: --outputs names them in its order")
    if any(len(spec.shape) not in (2, 3) for spec in outputs):
        raise asked.unsure("a head has the shape [1,n,m]")
    if len(outputs) == 1:
        return _yolo(asked, size, outputs[0], labels)
    if len(outputs) not in (2, 3):
        raise asked.unsure(f"{len(outputs)} outputs: --outputs names those to read")
    return _ssd(asked, size, list(outputs), labels, in_order, constant)


def _yolo(asked: _Asked, size: tuple[int, int], spec: TensorSpec, labels: Sequence[str]) -> Head:
    if len(spec.shape) != 3:
        raise asked.unsure("a head has the shape [1,n,m]")
    _, rows, columns = spec.shape
    found = asked.decode
    cells = {sum((size[0] // s) * (size[1] // s) for s in strides) for strides in _YOLO_STRIDES}
    why = "as --decode says"
    if not found:
        if columns in cells and rows > 4:
            found, why = "yolo-v8", f"{columns} cells, one box each"
        elif rows % _YOLO_ANCHORS == 0 and rows // _YOLO_ANCHORS in cells and columns > 5:
            found, why = "yolo-v5", f"{rows // _YOLO_ANCHORS} cells, three boxes each"
        elif rows in cells:
            raise asked.unsure("one box a cell along axis 1 may be decoded (yolo-v5) or not")
        else:
            raise asked.unsure(f"{size[0]}x{size[1]} pixels have {min(cells)} cells")
    if found not in ("yolo-v8", "yolo-v5"):
        raise asked.unsure(f"{found} reads {DECODERS['detect'][found]} outputs")
    classes = rows - 4 if found == "yolo-v8" else columns - 5
    _check_labels(labels, classes, asked)
    return Head(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")


def _ssd(
    asked: _Asked,
    size: tuple[int, int],
    outputs: list[TensorSpec],
    labels: Sequence[str],
    in_order: bool,
    constant: frozenset[str],
) -> Head:
    if not in_order:
        outputs = _ordered(asked, outputs, constant)
    boxes, scores = outputs[:2]
    if boxes.shape[-1] != 4 or scores.shape[:-1] != boxes.shape[:-1] or scores.shape[-1] < 2:
        raise asked.unsure("boxes [1,n,4] and scores [1,n,1+classes] are expected")
    classes = scores.shape[-1] - 1
    names_background = len(labels) == classes + 1 and labels[0].lower() in _BACKGROUND
    _check_labels(labels[1:] if names_background else labels, classes, asked)
    found, why = asked.decode, "as --decode says"
    priors = sum(
        -(-size[0] // pixels) * -(-size[1] // pixels) * each for pixels, each in _ULTRAFACE
    )
    if not found and len(outputs) == 3:
        found, why = "ssd-anchors", f"{outputs[2].name} {outputs[2]} are anchors"
    elif not found and classes == 1 and boxes.shape[1] == priors:
        found, why = "ultraface", f"{priors} priors and one class"
    elif not found:
        raise asked.unsure("boxes may be corners in shares (ssd), or offsets that need anchors")
    names = tuple(spec.name for spec in outputs)
    shown = ", ".join(f"{spec.name} {spec}" for spec in outputs)
    return Head(found, names, f"{shown}: {found}, {why}", names_background)


def _ordered(
    asked: _Asked, outputs: list[TensorSpec], constant: frozenset[str]
) -> list[TensorSpec]:
    """Boxes, scores, anchors."""
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
    if len(spec.shape) != 4:
        raise asked.unsure("a segmentation has the shape [1,classes,height,width]")
    _, first, middle, last = spec.shape
    if not found:
        of_first = first == len(labels) if labels else 0 < first < min(middle, last)
        of_last = last == len(labels) if labels else 0 < last < min(first, middle)
        if of_first == of_last:
            raise asked.unsure("the classes lie along axis 1 (argmax) or axis 3 (argmax-last)")
        found = "argmax" if of_first else "argmax-last"
        why = f"{first if of_first else last} classes"
    classes = first if found == "argmax" else last
    if classes == 1:
        raise asked.unsure("one channel has no classes to choose from")
    _check_labels(labels, classes, asked)
    return Head(found, (spec.name,), f"{spec.name} {spec}: {found}, {why}")


def _check_labels(labels: Sequence[str], classes: int, asked: _Asked) -> None:
    if labels and classes >= 0 and len(labels) != classes:
        raise asked.unsure(f"{len(labels)} labels for {classes} classes")
