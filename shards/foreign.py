"""What a file or a folder is that is no model of ONNX, and what turns it into one.

The commands for Hugging Face's folders ran as they stand here, with these versions
(`tests/zoo/language/exports.py` measures what they make).
"""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

GENAI = (
    "uvx --python 3.11 --with onnxruntime-genai==0.18.0 --with transformers==5.23.0 "
    "--with onnx==1.23.2 --with onnx-ir==1.1.0 --with torch==2.15.0 "
    "python -m onnxruntime_genai.models.builder -i {folder} -o {target} -p fp32 -e cpu "
    "-c {cache}"
)
OPTIMUM = (
    "uvx --python 3.11 --from optimum-onnx==0.1.0 --with transformers==4.57.6 "
    "--with onnxruntime==1.32.0 --with torch==2.15.0 "
    "optimum-cli export onnx -m {folder}{task} {target}"
)
# `model_type` of what the builder of genai made in tests/zoo/language/exports.py.
_GENAI_TYPES = frozenset({"gemma", "gemma2", "gpt_oss", "llama", "mistral", "qwen2", "qwen3"})
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_HEAD = 64  # bytes that are looked at
_LARGEST_CONFIG = 1 << 20
_TORCH = (
    "is a file of PyTorch, which has no graph: export it where its class is known, "
    "torch.onnx.export(model, (example,), 'model.onnx'); a YOLO of Ultralytics by "
    "yolo export model=FILE format=onnx"
)
_KERAS = (
    "is a model of Keras: model.export('model.onnx', format='onnx') of Keras 3 makes ONNX of it"
)
_TENSORFLOW = "is a model of TensorFlow: tf2onnx (python -m tf2onnx.convert) makes ONNX of it"
_TFLITE = "is a model of TensorFlow Lite: python -m tf2onnx.convert --tflite FILE makes ONNX of it"
_ENGINE = (
    "is an engine of TensorRT, which is made for one GPU and cannot be cut: give the ONNX file "
    "that it was made from; a node builds its own engines (--device tensorrt)"
)
_COREML = (
    "is a model of Core ML, for Apple's devices: export the model that it was made from to ONNX"
)
_ARCHIVE = "is an archive: unpack it, and give the .onnx file in it"
_GGUF = (
    "is a file of llama.cpp, which has no graph: take the folder of Hugging Face that it was made "
    "from; split names the command for such a folder"
)
_LFS = "is a pointer of Git LFS, not the file itself: git lfs pull brings it"
_ORT = "is a model that ONNX Runtime has made for itself: give the ONNX file that it was made from"
_OPENVINO = "is a part of a model of OpenVINO: export the model that it was made from to ONNX"
_BY_SUFFIX = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".pt2", ".torchscript"), _TORCH),
    **dict.fromkeys((".h5", ".keras", ".hdf5"), _KERAS),
    **dict.fromkeys((".engine", ".plan", ".trt"), _ENGINE),
    **dict.fromkeys((".mlpackage", ".mlmodel", ".mlmodelc"), _COREML),
    **dict.fromkeys((".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z"), _ARCHIVE),
    ".tflite": _TFLITE,
    ".pb": _TENSORFLOW,
    ".gguf": _GGUF,
    ".ort": _ORT,
    ".xml": _OPENVINO,
    ".data": "has weights of an ONNX model: give the .onnx file that they belong to",
}


def foreign(path: Path) -> str | None:
    """Why this is no model of ONNX, and what makes one of it, in one line; None where nothing is
    known of it. `path` is a file or a folder; a file's first bytes count before its name.
    """
    told = _of_folder(path) if path.is_dir() else _of_file(path)
    return None if told is None else f"{path} {told}"


def _of_file(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None  # whoever reads it says why
    suffix = path.suffix.lower()
    if head.startswith(b"version https://git-lfs"):
        return _LFS
    if head.startswith(b"GGUF"):
        return _GGUF
    if head.startswith(b"\x89HDF"):
        return _KERAS
    if head[4:8] == b"TFL3":
        return _TFLITE
    if head[4:8] == b"ORTM":
        return _ORT
    if suffix == ".safetensors" or (head[8:9] == b"{" and not any(head[3:8])):
        return _of_weights(path)
    if head.startswith(b"PK\x03\x04"):
        return _BY_SUFFIX.get(suffix, _ARCHIVE)
    if suffix == ".onnx":
        return None
    if suffix == ".bin" and head[:1] == b"\x80":
        return _TORCH
    return _BY_SUFFIX.get(suffix)


def _of_weights(path: Path) -> str:
    """Of a file of safetensors."""
    if (path.parent / "config.json").is_file():
        return f"has weights without a graph; for its folder: {_command(path.parent)}"
    return (
        "has weights without a graph: it needs the config.json of Hugging Face beside it, and "
        "split then names the command that exports the folder"
    )


def _of_folder(folder: Path) -> str | None:
    if folder.suffix.lower() in _BY_SUFFIX:
        return _BY_SUFFIX[folder.suffix.lower()]
    if (folder / "saved_model.pb").is_file():
        return _TENSORFLOW
    weights = [name for pattern in _WEIGHTS for name in folder.glob(pattern)]
    if (folder / "config.json").is_file() and weights:
        return f"is a folder of Hugging Face without a graph; export it: {_command(folder)}"
    if next(folder.glob("*.gguf"), None) is not None:
        return f"has no file of ONNX; what it has {_GGUF}"
    return None


def _command(folder: Path) -> str:
    """The exporter's command line for a folder of Hugging Face."""
    file = folder / "config.json"
    try:
        with file.open("rb") as opened:
            config = json.loads(opened.read(_LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError):
        config = {}
    config = config if isinstance(config, dict) else {}
    kinds = config.get("architectures")
    name = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
    given = {"folder": quote(str(folder)), "target": quote(f"{folder}-onnx")}
    speaks = "CausalLM" in name or "LMHeadModel" in name
    if speaks and config.get("model_type") in _GENAI_TYPES:
        return GENAI.format(**given, cache=quote(f"{folder}-cache"))
    task = " --task text-generation-with-past" if speaks else ""
    return OPTIMUM.format(**given, task=task)
