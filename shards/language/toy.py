"""`toy`, a language model that the repository trains itself: a folder as an exporter leaves it.

It writes English-like answers in the voice of Python's documentation, and knows nothing. It is
there to show the mesh; a useful model comes as an export. `toy-draft`, of the same tokenizer, is
less than half as large, and guesses tokens for it. Made by `zoo.language.train` of the tests.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

NAME = "toy"
TOKENIZER = "toy-tokenizer.json"
END = "<|end|>"
CONTEXT, HEAD_DIM, THETA = 512, 32, 10_000.0  # tokens; elements; base of the rotary embedding
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "<|assistant|>{{ message.content }}<|end|>{% elif message.role == 'user' %}"
    "<|user|>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1}
_GRAPH = "graph"


@dataclass(frozen=True)
class Toy:
    """One of the models. heads: of its queries. Its file has the graph without its tensors, as
    bytes, and the tensors: matrices INT8 with an FP32 scale for each column, of the embedding for
    each row; norms FP32."""

    name: str
    heads: int

    @property
    def file(self) -> str:
        return f"{self.name}.npz"


TOY, DRAFT = Toy(NAME, heads=4), Toy("toy-draft", heads=3)
TOYS = {toy.name: toy for toy in (TOY, DRAFT)}


def data_file(name: str) -> bytes:
    """The bytes of a file in the folder `data`."""
    return files("shards.language").joinpath("data", name).read_bytes()


def toy_weights(toy: Toy = TOY) -> dict[str, np.ndarray]:
    """FP32, [inputs, outputs]: `embed` [vocabulary, width]; for each layer `N.q`, `N.k`, `N.v`,
    `N.o`, `N.gate`, `N.up`, `N.down`, `N.norm.attention`, `N.norm.mlp` [width]; `norm` [width]."""
    stored = _stored(toy)
    return {
        name: array * stored[f"{name}.scale"] if array.dtype == np.int8 else array
        for name, array in stored.items()
        if not name.endswith(".scale") and name != _GRAPH
    }


def toy_model(toy: Toy = TOY) -> bytes:
    """A serialized ModelProto, as the builder of onnxruntime-genai writes it."""
    weights = toy_weights(toy)
    rates = (1.0 / THETA ** (np.arange(0, HEAD_DIM, 2, dtype=np.float32) / HEAD_DIM)).astype("f4")
    angles = np.outer(np.arange(CONTEXT, dtype=np.float32), rates)
    weights |= {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    model = onnx.ModelProto.FromString(_stored(toy)[_GRAPH].tobytes())
    for tensor in model.graph.initializer:
        if not tensor.HasField("raw_data"):
            array = _weight(tensor.name, weights)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(array, order="C"), tensor.name))
    return bytes(model.SerializeToString(deterministic=True))


def _stored(toy: Toy) -> dict[str, np.ndarray]:
    archive: Any = np.load(io.BytesIO(data_file(toy.file)), allow_pickle=False)
    with archive:
        return {name: archive[name] for name in archive.files}


def _weight(name: str, weights: dict[str, np.ndarray]) -> np.ndarray:
    """A tensor of the graph: `layers.0.qkv.weight` are `0.q`, `0.k` and `0.v` side by side."""
    if name in weights:
        return weights[name]
    _, layer, part, _ = name.split(".")
    parts = part if part == "qkv" else (part,)
    return np.concatenate([weights[f"{layer}.{each}"] for each in parts], axis=1)


def write_toy(folder: Path, toy: Toy = TOY) -> None:
    """The model and its texts, as files that `swarm model split` and `swarm up` take."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(toy_model(toy))
    (folder / "tokenizer.json").write_bytes(data_file(TOKENIZER))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    documents: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"bos_token": END, "eos_token": END},
        "generation_config.json": SAMPLING,
        "config.json": {"max_position_embeddings": CONTEXT, "num_attention_heads": toy.heads},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
