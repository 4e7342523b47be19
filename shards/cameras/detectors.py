"""Which head a detector has, told from the shapes of its outputs and from what was seen of them;
where two heads could claim them, it asks. Shapes are those at one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shards.cameras.asked import COCO, AskedTask, TaskHead
from shards.cameras.decode import DECODERS, STRIDES, form_of, is_chosen
from shards.cameras.seen import are_shares, span
from shards.errors import TaskError
from shards.specs import TensorSpec

_YOLO_ANCHORS = 3  # of version 5, in each cell
_ULTRAFACE = ((8, 3), (16, 2), (32, 2), (64, 3))  # pixels to a cell, priors in each cell
_DETR = 92  # COCO's numbers up to 90, 0, and no object
_BACKGROUND = ("background", "__background__", "bg")
# Tasks that the metadata of a file names, and what stands beside a box there.
BESIDE = {"segment": "seg", "pose": "pose", "obb": "obb"}
_NAMED = {"seg": "masks", "pose": "keypoints", "obb": "the angles of turned boxes"}


@dataclass(frozen=True)
class _Beside:
    """What stands behind the scores of a box. name: one of `shards.cameras.decode.BESIDE`, "" for
    nothing. values: how many. each: numbers of a keypoint. parts: the output with masks' parts."""

    name: str = ""
    values: int = 0
    each: int = 0
    parts: TensorSpec | None = None

    def of(self, form: str) -> str:
        return f"{form}-{self.name}" if self.name else form


def detector(
    asked: AskedTask,
    size: tuple[int, int],
    outputs: Sequence[TensorSpec],
    labels: Sequence[str],
    in_order: bool,
) -> TaskHead:
    """size: width and height of the model's picture. outputs: those to read, `in_order` where their
    owner names them. labels: of the owner, or of the file. Raises TaskError."""
    wanted = DECODERS["detect"].get(asked.decode)
    if wanted is not None and len(outputs) != wanted:
        raise asked.unsure(f"{asked.decode} reads {wanted}: --outputs names them in its order")
    if len(outputs) == 1 and len(outputs[0].shape) == 4:
        return _map(asked, outputs[0])
    rows = [spec for spec in outputs if len(spec.shape) == 3]
    parts = [spec for spec in asked.outputs if len(spec.shape) == 4]
    if len(rows) == 1 and (len(outputs) == 1 or parts):
        beside = _beside(asked, rows[0], parts)
        read = 1 if beside.parts is None else 2
        if len(outputs) != read:
            names = ", ".join(spec.name for spec in (*rows, *parts))
            what = f"a head with {_NAMED[beside.name]}" if beside.name else "a yolo head"
            raise asked.unsure(f"{what} reads {read} of {names}: --outputs names them")
        head = _yolo(asked, size, rows[0], beside)
        if beside.parts is None:
            return head
        return replace(head, outputs=(*head.outputs, beside.parts.name))
    if any(len(spec.shape) not in (2, 3) for spec in outputs):
        raise asked.unsure("a head has the shape [1,n,m]")
    if len(outputs) == 3:
        chosen = _three(asked, size, list(outputs), in_order)
        if chosen is not None:
            return chosen
    if len(outputs) not in (2, 3):
        raise asked.unsure(f"{len(outputs)} outputs: --outputs names those to read")
    return _ssd(asked, size, list(outputs), labels, in_order)


def _map(asked: AskedTask, spec: TensorSpec) -> TaskHead:
    if spec.shape[1] != 1:
        raise asked.unsure("a head has the shape [1,n,m], a map of text [1,1,h,w]")
    values = asked.seen.of(spec.name)
    if not are_shares(values):
        assert values is not None
        raise asked.unsure(f"its values run {span(values)}, and db reads shares, after a sigmoid")
    if asked.decode != "db":
        raise asked.unsure("one share a place may be a map of text (db), or of other things")
    asked.check(1, spec, "db")
    return TaskHead("db", (spec.name,), f"{spec.name} {spec}: db, as --decode says")


def _beside(asked: AskedTask, spec: TensorSpec, parts: Sequence[TensorSpec]) -> _Beside:
    """What stands behind the scores of a box, as the file, its shapes or the owner say."""
    said = asked.seen.said
    told = BESIDE.get(said.task, "")
    wanted = form_of(asked.decode)[1]
    if asked.decode and told and wanted != told:
        raise TaskError(
            f"the file says that it is for {said.task}, with {_NAMED[told]} beside a box, and "
            f"--decode {asked.decode} reads none"
        )
    name = wanted or told or ("seg" if parts and not asked.decode else "")
    if name == "obb":
        return _Beside("obb", 1)
    if name == "seg":
        if len(parts) != 1:
            raise asked.unsure("masks need their parts as a second output, [1,m,h,w]")
        return _Beside("seg", parts[0].shape[1], 0, parts[0])
    if name != "pose":
        return _Beside()
    if said.points is not None:
        return _Beside("pose", said.points[0] * said.points[1], said.points[1])
    # Without the file's word: what is left behind a score for each label, or for one class.
    first = 6 if form_of(asked.decode)[0] == "yolo-end2end" else 4 + (asked.labels or 1)
    values = (spec.shape[2] if first == 6 else spec.shape[1]) - first
    each = 3 if values % 3 == 0 else 2
    if values <= 0 or values % each:
        raise asked.unsure(f"{values} values behind the scores are no keypoints of 2 or 3 numbers")
    return _Beside("pose", values, each)


def _scales(asked: AskedTask) -> list[tuple[int, ...]]:
    """The scales of cells that may be: the file's largest stride is the last one."""
    last = asked.seen.said.stride
    return [strides for strides in STRIDES if last in (0, strides[-1])] or list(STRIDES)


def _yolo(asked: AskedTask, size: tuple[int, int], spec: TensorSpec, beside: _Beside) -> TaskHead:
    _, rows, columns = spec.shape
    cells = {sum((size[0] // s) * (size[1] // s) for s in strides) for strides in _scales(asked)}
    by_three = sum((size[0] // s) * (size[1] // s) for s in STRIDES[0])
    more = beside.values
    form = form_of(asked.decode)[0]
    if is_chosen(form) or (not form and _has_rows(asked, size, spec, beside)):
        return _end_to_end(asked, size, spec, beside)
    if form == "rt-detr-scores" or (not form and _are_detr_scores(asked, spec, cells)):
        asked.check(columns - 4, spec, "rt-detr-scores")
        why = "as --decode says" if form else "centres in shares, and a score for each class"
        return TaskHead(
            "rt-detr-scores", (spec.name,), f"{spec.name} {spec}: rt-detr-scores, {why}"
        )
    counts = {"yolo-v8": rows - 4 - more}
    if not beside.name:
        counts |= {"yolo-v5": columns - 5, "yolox": columns - 5}
    if form and form not in counts:
        raise asked.unsure(f"{asked.decode} reads {DECODERS['detect'][asked.decode]} outputs")
    found, why = form, "as --decode says"
    if not found:
        of_three = rows % _YOLO_ANCHORS == 0 and rows // _YOLO_ANCHORS in cells and columns > 5
        if columns in cells and rows > 4 and of_three:
            raise asked.unsure("both of its axes may count cells", counts)
        if columns in cells and rows > 4:
            found, why = "yolo-v8", f"{columns} cells, one box each"
        elif of_three and not beside.name:
            found, why = "yolo-v5", f"{rows // _YOLO_ANCHORS} cells, three boxes each"
        elif rows in cells and not beside.name:
            found, why = _by_cell(asked, size, spec, counts), f"{rows} cells, one box each"
            if found == "yolo-v5":
                why += " (a decoded YOLOX takes --fit corner --colours bgr --normalise none)"
        else:
            raise asked.unsure(f"{size[0]}x{size[1]} pixels have {by_three} cells", counts)
    if counts[found] < 1:
        raise asked.unsure(f"{beside.of(found)} leaves {counts[found]} classes in {spec}")
    asked.check(counts[found], spec, beside.of(found))
    if found == "yolox" and rows != by_three:
        raise asked.unsure(f"yolox has {by_three} boxes at {size[0]}x{size[1]} pixels", counts)
    if not asked.decode:
        _check_yolo(asked, size, spec, found, counts[found], beside)
    decode = beside.of(found)
    shown = f"{spec.name} {spec}: {decode}, {why}{_told(beside)}"
    return TaskHead(decode, (spec.name,), shown, more=more, each=beside.each)


def _told(beside: _Beside) -> str:
    if beside.name == "pose":
        return f", {beside.values // beside.each} keypoints of {beside.each} numbers"
    return f", {_NAMED[beside.name]} beside" if beside.name else ""


def _by_cell(
    asked: AskedTask, size: tuple[int, int], spec: TensorSpec, counts: Mapping[str, int]
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


def _has_rows(asked: AskedTask, size: tuple[int, int], spec: TensorSpec, beside: _Beside) -> bool:
    """Whether each row is an object: a box, a score and a class, as far as values show it. Raises
    TaskError where more values stand behind those of a row than anything says."""
    values = asked.seen.of(spec.name)
    if values is None or values.ndim != 3 or spec.shape[2] < 6:
        return False
    scores, classes = values[..., 4], values[..., 5]
    whole = bool((classes == np.rint(classes)).all() and classes.min() >= 0)
    if not whole or not are_shares(scores):
        return False
    if not classes.any() and spec.shape[2] != 6 + beside.values:
        return False
    if not classes.any() and not (asked.labels or asked.seen.said.head):
        return False
    if spec.shape[2] != 6 + beside.values:
        raise asked.unsure(
            f"rows of a box, a score, a class and {spec.shape[2] - 6} more values: keypoints "
            "(yolo-end2end-pose), an angle (yolo-end2end-obb), or a mask's weights "
            "(yolo-end2end-seg)"
        )
    return True


def _end_to_end(
    asked: AskedTask, size: tuple[int, int], spec: TensorSpec, beside: _Beside
) -> TaskHead:
    if spec.shape[2] != 6 + beside.values:
        raise asked.unsure(
            f"{asked.decode or beside.of('yolo-end2end')} reads [1,n,{6 + beside.values}]: a box, "
            "a score, a class" + (f" and {_NAMED[beside.name]}" if beside.name else "")
        )
    values = asked.seen.of(spec.name)
    largest = -1 if values is None else int(values[..., 5].max())
    if asked.labels and largest >= asked.labels:
        raise TaskError(
            f"{asked.named}, but {spec.name} {spec} answers class {largest} on a synthetic picture"
        )
    found, why = asked.decode, "as --decode says"
    if not found:
        found, why = _of_rows(asked, size, values, beside)
    shown = f"{spec.name} {spec}: {found}, {why}{_told(beside)}"
    return TaskHead(found, (spec.name,), shown, more=beside.values, each=beside.each)


def _of_rows(
    asked: AskedTask, size: tuple[int, int], values: np.ndarray | None, beside: _Beside
) -> tuple[str, str]:
    """Which rows they are, by their boxes, and why."""
    assert values is not None  # rows are told by values
    boxes = values[..., :4]
    if beside.name == "obb":
        return "yolo-end2end-obb", "centres and sizes, a score, a class and an angle each"
    in_order = (boxes[..., 2:] >= boxes[..., :2]).all(axis=-1).mean()
    if asked.seen.said.head == "RTDETRDecoder" or (are_shares(boxes) and in_order < 0.5):
        return "rt-detr-rows", "centres in shares, a score and a class each"
    is_told = "end2end" in asked.seen.said.head or beside.name != ""
    if boxes.max() <= 2 < min(size) or (in_order < 0.5 and not is_told):
        raise asked.unsure(
            f"rows of a box, a score and a class, but the boxes run {span(boxes)}, and are neither "
            "corners in pixels (yolo-end2end) nor surely centres in shares (rt-detr-rows)"
        )
    return beside.of("yolo-end2end"), "corners, a score and a class each"


def _are_detr_scores(asked: AskedTask, spec: TensorSpec, cells: set[int]) -> bool:
    """Whether each row has a box that is no corners, in shares, and a score for each label, or for
    each of COCO's classes."""
    values = asked.seen.of(spec.name)
    if values is None or values.ndim != 3 or not are_shares(values) or spec.shape[1] in cells:
        return False
    in_order = (values[..., 2:4] >= values[..., :2]).all(axis=-1).mean()
    return spec.shape[2] - 4 == (asked.labels or COCO) and in_order < 0.5


def _check_yolo(
    asked: AskedTask,
    size: tuple[int, int],
    spec: TensorSpec,
    decode: str,
    classes: int,
    beside: _Beside,
) -> None:
    """Raises TaskError unless all values behind a box are scores, as far as is seen, and something
    beside the shape says how many classes there are: keypoints, angles and the weights of masks
    stand in the same place."""
    values = asked.seen.of(spec.name)
    if values is not None and values.ndim == 3:
        values = values if decode == "yolo-v8" else values.transpose(0, 2, 1)
        boxes, scores = values[:, :4], values[:, 4 : values.shape[1] - beside.values]
        if not are_shares(scores):
            raise asked.unsure(
                f"the values behind the four of a box run {span(scores)} on a synthetic picture, "
                "so they are not all scores from 0 to 1: keypoints (yolo-v8-pose), the angles of "
                "turned boxes (yolo-v8-obb) and the weights of masks (yolo-v8-seg) stand there too"
            )
        if decode != "yolox" and boxes.max() <= 2 < min(size):
            raise asked.unsure(
                f"the boxes run {span(boxes)} on a synthetic picture, as shares do, and {decode} "
                "reads pixels"
            )
    if not asked.labels and not beside.name and classes not in (1, COCO):
        raise asked.unsure(
            f"it may be a detector of {classes} classes, or one of keypoints (yolo-v8-pose), "
            f"turned boxes (yolo-v8-obb) or masks: --labels with {classes} names says the first"
        )


def _three(
    asked: AskedTask, size: tuple[int, int], outputs: list[TensorSpec], in_order: bool
) -> TaskHead | None:
    """Boxes, scores and classes, one row an object each; None for other triples."""
    name = "boxes-scores-classes"
    if asked.decode not in ("", name):
        return None
    flat = [spec for spec in outputs if len(spec.shape) == 2]
    fours = [spec for spec in outputs if len(spec.shape) == 3 and spec.shape[2] == 4]
    is_alike = len(fours) == 1 and all(spec.shape == fours[0].shape[:2] for spec in flat)
    if len(flat) != 2 or not is_alike:
        if asked.decode:
            raise asked.unsure(f"{name} reads [1,n,4], [1,n] and [1,n]")
        return None
    if not in_order:
        whole = [s for s in flat if s.datatype.strip("U").startswith("INT")]
        if len(whole) != 1:
            raise asked.unsure("--outputs names boxes, scores and classes, in this order")
        outputs = [fours[0], flat[1] if flat[0] is whole[0] else flat[0], whole[0]]
    values = [asked.seen.of(spec.name) for spec in outputs]
    if not asked.decode:
        boxes = values[0]
        if not are_shares(values[1]):
            raise asked.unsure(f"the scores of {outputs[1].name} are no shares")
        if boxes is None or boxes.max() <= 2 < min(size):
            raise asked.unsure("its boxes may be shares, and boxes-scores-classes reads pixels")
    largest = -1 if values[2] is None else int(values[2].max())
    if asked.labels and largest >= asked.labels:
        raise TaskError(f"{asked.named}, but {outputs[2].name} is {largest} on a synthetic picture")
    shown = ", ".join(f"{spec.name} {spec}" for spec in outputs)
    return TaskHead(
        name, tuple(spec.name for spec in outputs), f"{shown}: boxes, scores and classes"
    )


def _ssd(
    asked: AskedTask,
    size: tuple[int, int],
    outputs: list[TensorSpec],
    labels: Sequence[str],
    in_order: bool,
) -> TaskHead:
    if not in_order:
        outputs = _ordered(asked, outputs)
    boxes, scores = outputs[:2]
    form = asked.decode or (_detr_of(asked, boxes, scores) if len(outputs) == 2 else "")
    if form in ("rt-detr", "detr"):
        if boxes.shape[-1] != 4 or scores.shape[:-1] != boxes.shape[:-1]:
            raise asked.unsure("boxes [1,n,4] and logits [1,n,classes] are expected")
        asked.check(scores.shape[-1] - (form == "detr"), scores, form)
        why = "centres in shares, and logits" + (", the last for no object" * (form == "detr"))
        if asked.decode:
            why = "as --decode says"
        pair = (boxes.name, scores.name)
        shown = f"{boxes.name} {boxes}, {scores.name} {scores}"
        return TaskHead(form, pair, f"{shown}: {form}, {why}")
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
            "boxes may be corners in shares (ssd), centres in shares beside logits (rt-detr: a "
            "sigmoid makes them scores; detr: a softmax, the last class is no object), or offsets "
            "that need anchors"
        )
    values = asked.seen.of(scores.name)
    if not asked.decode and values is not None and not are_shares(values):
        raise asked.unsure(
            f"the scores run {span(values)} on a synthetic picture, and {found} reads shares, "
            "after a softmax"
        )
    names = tuple(spec.name for spec in outputs)
    shown = ", ".join(f"{spec.name} {spec}" for spec in outputs)
    return TaskHead(found, names, f"{shown}: {found}, {why}", names_background)


def _detr_of(asked: AskedTask, boxes: TensorSpec, scores: TensorSpec) -> str:
    """`rt-detr` or `detr` where boxes are shares that are no corners, beside logits of as many
    classes as there are labels, or of COCO's; with one more class that wins in most rows, as no
    object does, `detr`. "" for others."""
    found, raw = asked.seen.of(boxes.name), asked.seen.of(scores.name)
    if found is None or raw is None:
        return ""
    if boxes.shape[-1] != 4 or scores.shape[:-1] != boxes.shape[:-1] or are_shares(raw):
        return ""
    are_corners = bool((found[..., 2:] >= found[..., :2]).all())
    if are_corners or not are_shares(found):
        return ""
    classes = scores.shape[-1]
    is_last = bool((raw.argmax(axis=-1) == classes - 1).mean() > 0.5)
    if is_last and classes == (asked.labels + 1 if asked.labels else _DETR):
        return "detr"
    return "rt-detr" if not is_last and classes == (asked.labels or COCO) else ""


def _ordered(asked: AskedTask, outputs: list[TensorSpec]) -> list[TensorSpec]:
    """Boxes, scores, anchors."""
    constant = asked.seen.constant
    anchors = [s for s in outputs if s.name in constant or len(s.shape) == 2]
    rest = [s for s in outputs if s not in anchors]
    fours = [s for s in rest if s.shape[-1] == 4]
    if len(fours) == 2 and not anchors:  # as many scores as sides: boxes are the shares
        seen = [s for s in fours if asked.seen.of(s.name) is not None]
        fours = [s for s in seen if are_shares(asked.seen.of(s.name))]
    if len(rest) != 2 or len(anchors) != len(outputs) - 2 or len(fours) != 1:
        raise asked.unsure("--outputs names boxes, scores and anchors, in this order")
    scores = rest[1] if rest[0] is fours[0] else rest[0]
    return [fours[0], scores, *anchors]
