"""Models of Ultralytics with random weights: a file as its exporter writes it, and what the library
itself says of a picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.cameras.heads.case import Answer, Case, Row
from shards.cameras.pixels import on_grid

THRESHOLD = 0.25
HIGHEST = 4.0  # above the logit of the threshold
OVER = 60  # cells, or queries, whose score is above the threshold

# Behind a "+": what the exporter is told. `end`: the end-to-end branch; `nms`: suppression inside.
NAMES = (
    "yolov3-tinyu", "yolov5nu", "yolov8n", "yolov8n+nms", "yolov8n-p2", "yolov8n-p6", "yolov9t",
    "yolov10n", "yolov10n+end", "yolo11n", "yolo12n", "yolo26n", "yolo26n+end", "yolo26n-p2+end",
    "rtdetr-resnet50", "yolov8n-seg", "yolo26n-seg+end", "yolov8n-pose", "yolov8n-pose+nms",
    "yolo26n-pose+end", "yolov8n-obb", "yolov8n-obb+nms", "yolo26n-obb+end", "yolov8n-cls",
    "yolo26n-cls", "yolo26n-depth", "yolo26n-sem",
)  # fmt: skip
YAML = {"yolov3-tinyu": "yolov3-tiny", "yolov5nu": "yolov5n"}
ADDED: dict[str, dict[str, Any]] = {
    "": {},
    "end": {"nms": False},
    "nms": {"nms": True, "conf": THRESHOLD, "iou": 0.45},
}


def cases() -> list[Case]:
    return [
        Case(
            f"ultralytics: {name}",
            kind_of(name),
            partial(build, name),
            own_size=kind_of(name) != "detect",
        )
        for name in NAMES
    ]


def kind_of(name: str) -> str:
    """Our word for what it is for."""
    ends = {"cls": "classify", "sem": "segment", "depth": "depth"}
    return ends.get(name.partition("+")[0].rpartition("-")[2], "detect")


def build(name: str, folder: Path, image: np.ndarray) -> tuple[Path, Answer]:
    """The file, and its library's own answer to a picture, uint8 [h, w, 3], RGB. image: the weights
    are such that something is found in it."""
    import torch
    from ultralytics import RTDETR, YOLO

    torch.manual_seed(0)
    kind = RTDETR if name.startswith("rtdetr") else YOLO
    base, _, added = name.partition("+")
    model = kind(f"{YAML.get(base, base)}.yaml")
    stir(model.model, image)
    model.save(folder / f"{name}.pt")
    model = kind(folder / f"{name}.pt")
    size = 224 if name.endswith("-cls") else 640 if name.startswith("rtdetr") else 320
    path = Path(
        model.export(format="onnx", imgsz=size, simplify=False, opset=17, batch=1, **ADDED[added])
    )
    own = kind(path) if kind is RTDETR else kind(path, task=model.task)

    def answer(image: np.ndarray) -> list[Row]:
        said = own.predict(
            np.ascontiguousarray(image[..., ::-1]), imgsz=size, conf=THRESHOLD, iou=0.45,
            max_det=300, verbose=False,
        )  # fmt: skip
        return rows(said[0])

    return path, answer


def rows(said: Any) -> list[Row]:
    """Of its `Results`."""
    if said.probs is not None:
        values = said.probs.data.cpu().numpy()
        return [Row(int(at), float(values[at])) for at in np.argsort(-values, kind="stable")[:5]]
    for name in ("depth", "semantic_mask"):
        if getattr(said, name, None) is not None:
            data = getattr(said, name)
            return [Row(grid=np.asarray(getattr(data, "data", data).cpu()).squeeze())]
    if said.obb is not None:
        found = said.obb
        corners = found.xyxyxyxy.cpu().numpy()
        return [
            Row(int(kind), float(score), corners=four)
            for kind, score, four in zip(found.cls, found.conf, corners, strict=True)
        ]
    boxes = said.boxes
    made = []
    for at in range(len(boxes)):
        row = Row(int(boxes.cls[at]), float(boxes.conf[at]), boxes.xyxy[at].cpu().numpy())
        if said.keypoints is not None:
            row.points = said.keypoints.data[at].cpu().numpy()
        if said.masks is not None:
            row.mask = said.masks.data[at].cpu().numpy().astype(bool)
        made.append(row)
    return made


def stir(model: Any, image: np.ndarray) -> None:
    """Random weights that answer like trained ones: the statistics of layers are those of a run,
    and a few dozen scores are above the threshold."""
    import torch

    small = on_grid(image, 320, 320, "letterbox", 114).transpose(2, 0, 1)[None] / np.float32(255)
    picture = torch.cat([torch.from_numpy(small), torch.rand(1, 3, 320, 320)])
    head = model.model[-1]
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
            module.train()
    with torch.no_grad():
        model.eval() if hasattr(head, "dec_score_head") else None
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train()
        model(picture)
    model.eval()
    # The end-to-end branch is exported where it is asked for.
    branches = [getattr(head, name, None) for name in ("cv3", "one2one_cv3")]
    if hasattr(head, "dec_score_head"):
        branches = [list(head.dec_score_head)[-1:]]
    for branch in branches:
        if branch is not None:
            _levelled(model, _last(branch), picture[:1])
    for name in ("cv2", "one2one_cv2"):
        for end in _last(getattr(head, name, None) or []):
            end.bias.data += 3  # boxes have sides above nought


def _last(branch: Any) -> list[Any]:
    """The last layer of each scale."""
    import torch

    return [each[-1] if isinstance(each, torch.nn.Sequential) else each for each in branch]


def _levelled(model: Any, ends: list[Any], picture: Any) -> None:
    """Biases such that `OVER` places have a score above the threshold."""
    import torch

    made: list[Any] = []
    hooks = [end.register_forward_hook(lambda _m, _i, out: made.append(out)) for end in ends]
    with torch.no_grad():
        for end in ends:
            end.bias.zero_()
        model(picture)
        best = torch.cat([each.amax(-1 if each.ndim == 3 else 1).flatten() for each in made])
        best = best.sort(descending=True).values
        level = best[min(OVER, len(best) // 4)]
        for end in ends:
            end.weight.mul_(HIGHEST / (best[0] - level))
            end.bias.sub_(level * HIGHEST / (best[0] - level) + np.log(1 / THRESHOLD - 1))
    for hook in hooks:
        hook.remove()
