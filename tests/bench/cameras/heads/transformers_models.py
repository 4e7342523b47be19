"""Models of Hugging Face with random weights: detectors of DETR's family, and depth."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.cameras.heads.case import Answer, Case, Row

THRESHOLD = 0.25
# Name, class of its configuration and of its model, the head, what its owner says.
DETECTORS = {
    "rt-detr": ("RTDetr", {"decode": "rt-detr"}),
    "rt-detr-v2": ("RTDetrV2", {"decode": "rt-detr"}),
    "d-fine": ("DFine", {"decode": "rt-detr"}),
    "detr": ("Detr", {"decode": "detr"}),
    "yolos": ("Yolos", {"decode": "detr"}),
}
SIZES = {"yolos": 512}


def cases() -> list[Case]:
    found = [
        Case(f"transformers: {name}", "detect", partial(build, name), options, own_size=True)
        for name, (_, options) in DETECTORS.items()
    ]
    return [
        *found,
        Case("transformers: depth-anything", "depth", partial(depth, "depth-anything"), {}, True),
    ]


def build(name: str, folder: Path, image: np.ndarray) -> tuple[Path, Answer]:
    """As of `ultralytics_models.build`; image: of any size, it is not used."""
    import torch
    import transformers

    torch.manual_seed(0)
    prefix, _ = DETECTORS[name]
    size = SIZES.get(name, 320)
    config = getattr(transformers, f"{prefix}Config")(**_config(name, size))
    model = getattr(transformers, f"{prefix}ForObjectDetection")(config).eval()
    _spread(name, model)
    path = folder / f"hf-{name}.onnx"
    _export(model, path, size, ["logits", "pred_boxes"])
    processor = _processor(name)

    def answer(picture: np.ndarray) -> list[Row]:
        # Of the file: random queries are nearly equal, and another runtime chooses others.
        made = [torch.from_numpy(each) for each in _run(path, _normalised(name, picture))]
        outputs = SimpleNamespace(logits=made[0], pred_boxes=made[1])
        (found,) = processor.post_process_object_detection(
            outputs, threshold=THRESHOLD, target_sizes=[picture.shape[:2]]
        )
        return [
            Row(int(kind), float(score), box.numpy())
            for kind, score, box in zip(
                found["labels"], found["scores"], found["boxes"], strict=True
            )
        ]

    return path, answer


def _run(path: Path, values: np.ndarray) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(path.read_bytes(), options)
    return list(session.run(None, {session.get_inputs()[0].name: values}))


def _config(name: str, size: int) -> dict[str, Any]:
    if name == "yolos":
        return {"num_hidden_layers": 3, "image_size": [size, size], "num_labels": 91}
    if name == "detr":
        import transformers

        backbone = transformers.ResNetConfig(out_features=["stage4"])
        small = {"encoder_layers": 2, "decoder_layers": 2, "num_labels": 91}
        return small | {"use_timm_backbone": False, "backbone_config": backbone}
    return {"num_labels": 80}


def _processor(name: str) -> Any:
    import transformers

    if name in ("detr", "yolos"):
        return transformers.DetrImageProcessor()
    return transformers.RTDetrImageProcessor()


def _normalised(name: str, picture: np.ndarray) -> np.ndarray:
    """As each one's processor makes it, of a picture of the model's size."""
    values = picture.transpose(2, 0, 1)[None].astype(np.float32) / 255
    if name in ("detr", "yolos", "depth-anything"):
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        values = (values - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(std, (1, 3, 1, 1))
    return np.ascontiguousarray(values, np.float32)


def _spread(name: str, model: Any) -> None:
    """Random weights of the last layers that answer with scores on both sides of the threshold."""
    import torch

    for key, module in model.named_modules():
        is_last = any(part in key for part in ("class_embed", "class_labels_classifier"))
        if is_last and isinstance(module, torch.nn.Linear) and module.out_features > 50:
            with torch.no_grad():
                module.weight.normal_(0, 0.12)
                module.bias.fill_(0.0 if name in ("detr", "yolos") else -4.0)


def _bare(model: Any, names: list[str]) -> Any:
    """A model that answers with these of its outputs alone, as exporters write them."""
    import torch

    class Bare(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            found = self.model(pixel_values=pixel_values)
            return tuple(getattr(found, name) for name in names)

    return Bare().eval()


def _export(model: Any, path: Path, size: int, outputs: list[str]) -> None:
    import torch

    picture = torch.rand(1, 3, size, size)
    torch.onnx.export(
        _bare(model, outputs),
        (picture,),
        str(path),
        input_names=["pixel_values"],
        output_names=outputs,
        opset_version=17,
        dynamo=False,
    )


def depth(name: str, folder: Path, image: np.ndarray) -> tuple[Path, Answer]:
    """As `build`."""
    import torch
    import transformers

    torch.manual_seed(0)
    size = 140
    config = transformers.DepthAnythingConfig(
        backbone_config=transformers.Dinov2Config(
            image_size=size, hidden_size=64, num_hidden_layers=4, num_attention_heads=2,
            out_indices=[1, 2, 3, 4], reshape_hidden_states=False,
        ),
        reassemble_hidden_size=64, neck_hidden_sizes=[16, 24, 32, 40], fusion_hidden_size=16,
    )  # fmt: skip
    model = transformers.DepthAnythingForDepthEstimation(config).eval()
    path = folder / f"hf-{name}.onnx"
    _export(model, path, size, ["predicted_depth"])

    def answer(picture: np.ndarray) -> list[Row]:
        with torch.no_grad():
            found = model(pixel_values=torch.from_numpy(_normalised(name, picture)))
        return [Row(grid=found.predicted_depth[0].numpy())]

    return path, answer
