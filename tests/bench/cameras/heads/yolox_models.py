"""YOLOX with random weights, exported with and without its boxes decoded, beside its own
preprocessing and postprocessing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.cameras.heads.case import Answer, Case, Row

THRESHOLD, IOU, SIDE, CLASSES = 0.25, 0.45, 320, 80
OVER = 60  # cells whose score is above the threshold


def cases() -> list[Case]:
    raw = Case("yolox: nano", "detect", partial(build, False))
    options = {"decode": "yolo-v5", "fit": "corner", "colours": "bgr", "normalise": "none"}
    return [raw, Case("yolox: nano, decoded", "detect", partial(build, True), options)]


def build(is_decoded: bool, folder: Path, image: np.ndarray) -> tuple[Path, Answer]:
    import torch
    from yolox.data.data_augment import preproc
    from yolox.models.yolo_head import YoloxHead
    from yolox.models.yolo_pafpn import YoloPafpn
    from yolox.models.yolox import YoloxModule
    from yolox.utils.boxes import postprocess

    torch.manual_seed(0)
    width = {"width": 0.25, "in_channels": [256, 512, 1024], "depthwise": True}
    model = YoloxModule(YoloPafpn(0.33, **width), YoloxHead(CLASSES, **width)).eval()
    pixels, _ = preproc(np.ascontiguousarray(image[..., ::-1]), (SIDE, SIDE))
    picture = torch.from_numpy(pixels)[None]
    _stir(model, picture)
    model.head.decode_in_inference = is_decoded
    path = folder / f"yolox-{'decoded' if is_decoded else 'raw'}.onnx"
    torch.onnx.export(
        model, (picture,), str(path), input_names=["images"], output_names=["output"],
        opset_version=17, dynamo=False,
    )  # fmt: skip
    model.head.decode_in_inference = True

    def answer(asked: np.ndarray) -> list[Row]:
        made, ratio = preproc(np.ascontiguousarray(asked[..., ::-1]), (SIDE, SIDE))
        with torch.no_grad():
            outputs = model(torch.from_numpy(made)[None])
        (found,) = postprocess(outputs, CLASSES, THRESHOLD, IOU)
        rows = [] if found is None else found.numpy()
        return [Row(int(row[6]), float(row[4] * row[5]), row[:4] / ratio) for row in rows]

    return path, answer


def _stir(model: Any, picture: Any) -> None:
    """Statistics of layers as of a real run, and a few dozen scores above the threshold."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
            module.train()
    with torch.no_grad():
        model(picture)
        model.eval()
        for convs, bias in ((model.head.cls_preds, 0.0), (model.head.obj_preds, 4.0)):
            for conv in convs:
                conv.bias.fill_(bias)
        for conv in model.head.reg_preds:
            conv.weight.mul_(0.5)
            conv.bias.fill_(0.0)
        made = model(picture)[0]
        best = torch.logit((made[:, 5:].amax(1) * made[:, 4]).clamp(1e-6, 1 - 1e-6))
        level = float(best.sort(descending=True).values[OVER])
        for conv in model.head.cls_preds:
            conv.bias.sub_(level + float(np.log(1 / THRESHOLD - 1)))
