"""Models as packages ship them and exporters write them: cut, served, compared with the whole.

    PYTHONPATH=tests uv run --with torch --with torchvision --with onnxscript --with transformers \
        --with skl2onnx --with silero-vad --with rapidocr-onnxruntime --with magika --with nudenet \
        --with openwakeword python -m bench.exported_models [NAME …]

Each model is cut in three stages (two, one, where there are no more cuts), pushed into a mesh of
three nodes, and asked with inputs of several seeds, alone and eight at a time. Each answer is
compared with the one that plain ONNX Runtime gives for the file. Prints a table, and exits with 1
where an answer differs by more than 1e-4 of the output's largest value. A model whose package is
not there is left out, and named.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from support.meshes import mesh_of

from shards.errors import ShardsError
from shards.runtimes.synthetic import random_feeds
from shards.split.split import SplitResult, split
from swarm.errors import SwarmError

TOLERANCE = 1e-4
SEEDS = range(8)
Make = Callable[[Path], Path]

TORCHVISION = (
    "resnet18",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "densenet121",
    "regnet_y_400mf",
    "mnasnet0_5",
)
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
WIDTHS = {"hidden_sizes": [16, 32, 64, 128]}
# The class of a model of Hugging Face, its configuration beside the usual, and its input.
TEXT, PICTURE, SOUND = "input_ids", "pixel_values", "input_values"
TRANSFORMERS: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "bert": ("BertModel", SMALL, TEXT),
    "roberta": ("RobertaModel", SMALL, TEXT),
    "electra": ("ElectraModel", SMALL, TEXT),
    "albert": ("AlbertModel", SMALL | {"embedding_size": 32}, TEXT),
    "distilbert": ("DistilBertModel", {"dim": 64, "n_layers": 4, "n_heads": 4}, TEXT),
    "mpnet": ("MPNetModel", SMALL, TEXT),
    "vit": ("ViTModel", SMALL, PICTURE),
    "deit": ("DeiTModel", SMALL, PICTURE),
    "beit": ("BeitModel", SMALL, PICTURE),
    "dinov2": ("Dinov2Model", SMALL, PICTURE),
    "convnext": ("ConvNextModel", WIDTHS | {"depths": [1, 1, 2, 1]}, PICTURE),
    "segformer": ("SegformerModel", WIDTHS, PICTURE),
    "wav2vec2": ("Wav2Vec2Model", SMALL, SOUND),
    "hubert": ("HubertModel", SMALL, SOUND),
}  # fmt: skip
# Files that packages bring, as patterns below the package.
SHIPPED = {
    "silero_vad": "**/silero_vad*.onnx",
    "rapidocr_onnxruntime": "**/*.onnx",
    "magika": "**/*.onnx",
    "nudenet": "**/*.onnx",
    "openwakeword": "**/*.onnx",
}
TREES = (
    "RandomForestClassifier",
    "GradientBoostingRegressor",
    "MLPClassifier",
    "LogisticRegression",
)


def cases() -> Iterator[tuple[str, Make]]:
    """The name of each model that can be had here, and what brings its file."""
    for package, pattern in SHIPPED.items():
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            print(f"left out: {package} is not installed", flush=True)
            continue
        for file in sorted(Path(found.origin).parent.glob(pattern)):
            yield f"{package}/{file.name}", partial(as_shipped, file)
    for name in TORCHVISION:
        yield f"torchvision/{name}", partial(of_torchvision, name)
    for name in TRANSFORMERS:
        yield f"transformers/{name}", partial(of_transformers, name)
    for name in TREES:
        yield f"sklearn/{name}", partial(of_sklearn, name)


def as_shipped(file: Path, _folder: Path) -> Path:
    return file


def of_torchvision(name: str, folder: Path) -> Path:
    torch, torchvision = (importlib.import_module(one) for one in ("torch", "torchvision"))
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None).eval()
    return _exported(model, {"x": torch.randn(2, 3, 96, 96)}, folder / f"{name}.onnx")


def of_transformers(name: str, folder: Path) -> Path:
    torch, transformers = (importlib.import_module(one) for one in ("torch", "transformers"))
    torch.manual_seed(0)
    kind, given, takes = TRANSFORMERS[name]
    config = getattr(transformers, kind).config_class(**given)
    model = getattr(transformers, kind)(config).eval()
    inputs = {
        TEXT: {TEXT: torch.ones(2, 24, dtype=torch.int64)},
        PICTURE: {PICTURE: torch.randn(2, 3, *_side(config))},
        SOUND: {SOUND: torch.randn(2, 8000)},
    }[takes]
    return _exported(model, inputs, folder / f"{name}.onnx")


def _side(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", 64)
    return (size, size) if isinstance(size, int) else tuple(size)


def _exported(model: Any, inputs: Mapping[str, Any], path: Path) -> Path:
    """By the exporter of torch, with the batch open."""
    torch = importlib.import_module("torch")
    batch = {name: {0: torch.export.Dim("batch", max=64)} for name in inputs}
    torch.onnx.export(
        model, kwargs=dict(inputs), f=path, dynamic_shapes=batch, dynamo=True, external_data=False
    )
    return path


def of_sklearn(name: str, folder: Path) -> Path:
    """Trained on noise; without a ZipMap, since a map is no tensor."""
    sklearn = {
        "RandomForestClassifier": "ensemble",
        "GradientBoostingRegressor": "ensemble",
        "MLPClassifier": "neural_network",
        "LogisticRegression": "linear_model",
    }
    skl2onnx = importlib.import_module("skl2onnx")
    pipeline = importlib.import_module("sklearn.pipeline")
    scaler = importlib.import_module("sklearn.preprocessing").StandardScaler()
    drawn = np.random.default_rng(0)
    rows = drawn.standard_normal((200, 12)).astype(np.float32)
    kind = getattr(importlib.import_module(f"sklearn.{sklearn[name]}"), name)
    made = pipeline.make_pipeline(scaler, kind(random_state=0)).fit(rows, rows[:, 0] > 0)
    options = {} if name.endswith("Regressor") else {id(made): {"zipmap": False}}
    model = skl2onnx.to_onnx(made, rows[:1], options=options)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def cut(file: Path) -> SplitResult:
    """In as many stages as there are, three at the most. Raises `ShardsError`."""
    for stages in (3, 2):
        try:
            return split(file, name="m", stages=stages)
        except ShardsError as error:
            if "possible" not in str(error):
                raise
    return split(file, name="m", stages=1)


async def check(name: str, make: Make) -> tuple[bool, str]:
    """Whether a model's answers are those of the file, or it is refused; and a row of the table."""
    with TemporaryDirectory() as folder:
        try:
            file = make(Path(folder))
        except Exception as error:
            return True, f"not exported: {type(error).__name__}: {str(error).splitlines()[0]:.80}"
        began = time.perf_counter()
        try:
            result = cut(file)
        except ShardsError as error:
            return True, f"refused: {error}"
        took = time.perf_counter() - began
        whole = ort.InferenceSession(str(file))
        asked = [random_feeds(result.manifest.inputs, seed=seed) for seed in SEEDS]
        names = [spec.name for spec in result.manifest.outputs]
        wanted = [dict(zip(names, whole.run(names, feed), strict=True)) for feed in asked]
    roles = [f"shard-{shard.stage}" for shard in result.manifest.shards]
    async with mesh_of(result, *roles) as local:
        try:
            alone = [await local.mesh.infer("m", feed, budget=30.0) for feed in asked]
            infer = partial(local.mesh.infer, "m", budget=30.0)
            together = await asyncio.gather(*(infer(feed) for feed in asked))
        except SwarmError as error:
            return False, f"{len(roles)} stages; asked: {error.status}: {error}"
    far = [
        max(apart(got.outputs[key], want[key]) for key in names)
        for answers in (alone, together)
        for got, want in zip(answers, wanted, strict=True)
    ]
    worst, equal = max(far), sum(one == 0.0 for one in far)
    said = (
        f"{len(roles)} stages in {took:.1f} s; {equal} of {len(far)} to the bit, else {worst:.1e}"
    )
    return worst <= TOLERANCE, said


def apart(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference as a share of the largest value; infinity for another shape, kind, or
    place of what is no number."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return np.inf
    if want.dtype.kind not in "fiu":
        return 0.0 if (got == want).all() else np.inf
    a, b = got.astype(np.float64), want.astype(np.float64)
    numbers = np.isfinite(b)
    if (np.isfinite(a) != numbers).any():
        return np.inf
    if not numbers.any():
        return 0.0
    return float(np.abs(a - b)[numbers].max() / max(1e-6, np.abs(b[numbers]).max()))


async def main(wanted: list[str]) -> int:
    wrong = 0
    for name, make in cases():
        if wanted and not any(one in name for one in wanted):
            continue
        right, row = await check(name, make)
        wrong += not right
        print(f"| {name} | {row} |" if right else f"| {name} | **WRONG** {row} |", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
