"""`toy`, a language model that the repository trains itself: a folder as an exporter leaves it.

It writes English-like answers in the voice of Python's documentation, and knows nothing. It is
there to show the mesh; a useful model comes as an export. `toy-draft`, of the same tokenizer, is
less than half as large, and guesses tokens for it. Made by `zoo.language.train`.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shards.zoo import data_file
from shards.zoo.decoder_graph import DecoderShape, Form, decoder_of

NAME = "toy"
TOKENIZER = "toy-tokenizer.json"
END = "<|end|>"
SHAPE = DecoderShape(
    layers=4,
    width=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    feedforward=384,
    vocabulary=2048,
    context=512,
    tied=True,
)


@dataclass(frozen=True)
class Toy:
    """One of the models. weights: the name of its file."""

    name: str
    shape: DecoderShape
    weights: str


TOY = Toy(NAME, SHAPE, "toy.npz")
DRAFT = Toy(
    "toy-draft",
    replace(SHAPE, layers=2, width=96, heads=3, kv_heads=1, feedforward=256),
    "toy-draft.npz",
)
TOYS = {toy.name: toy for toy in (TOY, DRAFT)}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "<|assistant|>{{ message.content }}<|end|>{% elif message.role == 'user' %}"
    "<|user|>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1}
_LARGEST = 127


def toy_weights(toy: Toy = TOY) -> dict[str, np.ndarray]:
    """The weights, FP32, by the names of `decoder_weights`."""
    archive: Any = np.load(io.BytesIO(data_file(toy.weights)), allow_pickle=False)
    with archive:
        stored = {name: archive[name] for name in archive.files}
    return {
        name: array * stored[f"{name}.scale"] if array.dtype == np.int8 else array
        for name, array in stored.items()
        if not name.endswith(".scale")
    }


def stored_weights(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As they are kept: matrices INT8 with an FP32 scale for each column, of the embedding for
    each row; norms FP32."""
    stored: dict[str, np.ndarray] = {}
    for name, array in weights.items():
        if array.ndim == 1:
            stored[name] = array.astype(np.float32)
            continue
        axis = 1 if name == "embed" else 0
        scale = np.abs(array).max(axis=axis, keepdims=True).astype(np.float32) / _LARGEST
        stored[name] = np.rint(array / scale).astype(np.int8)
        stored[f"{name}.scale"] = scale
    return stored


def toy_model(form: Form = "genai", toy: Toy = TOY) -> bytes:
    """A serialized ModelProto, in the form of one of the exporters."""
    return decoder_of(toy.shape, toy_weights(toy), form=form)


def write_toy(folder: Path, toy: Toy = TOY) -> None:
    """The model and its texts, as files that `swarm model split` and `swarm up` take."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = data_file(TOKENIZER)
    (folder / "model.onnx").write_bytes(toy_model(toy=toy))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    documents: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"bos_token": END, "eos_token": END},
        "generation_config.json": SAMPLING,
        "config.json": {
            "max_position_embeddings": toy.shape.context,
            "num_attention_heads": toy.shape.heads,
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1))
