"""Trains the toy language model on the texts of Python's standard library, in numpy alone.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=tests python -m zoo.language.train  train, write, evaluate
    … --draft                                    `toy-draft` instead, by the tokenizer that is there
    PYTHONPATH=tests python -m zoo.language.train --check [--draft]  evaluate the shipped files only

One document in twenty is held out, and used only to report the perplexity. Everything is seeded:
equal versions of Python, numpy and `tokenizers` on equal processors give equal bytes. Needs the
extras `language` and `split`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import shards.language
from shards.language.toy import (
    CONTEXT,
    DRAFT,
    HEAD_DIM,
    THETA,
    TOKENIZER,
    TOY,
    Toy,
    data_file,
    toy_weights,
)
from zoo.language.corpus import SEED, documents, parted, tokenizer_of
from zoo.language.decoder_graph import DecoderShape, decoder_of
from zoo.language.net import LanguageNet
from zoo.numpy_network import Adam, Array, Parameter, cross_entropy

DATA = Path(shards.language.__file__).parent / "data"
SHAPE = DecoderShape(
    layers=4,
    width=128,
    heads=TOY.heads,
    kv_heads=2,
    head_dim=HEAD_DIM,
    feedforward=384,
    vocabulary=2048,
    context=CONTEXT,
    theta=THETA,
    tied=True,
)
SHAPES = {
    TOY: SHAPE,
    DRAFT: replace(SHAPE, layers=2, width=96, heads=DRAFT.heads, kv_heads=1, feedforward=256),
}
# Batches of as many windows of as many tokens, and how many of them: short windows are cheap.
PHASES = ((16, 128, 1300), (8, 256, 300))
RATE, WARM_UP, DECAY, LARGEST_NORM = 4e-3, 60, 0.05, 1.0
TOLD = 50  # steps
WINDOW = 256  # tokens of which the last is judged with all others before it

Tokens = NDArray[np.int64]


def stream(tokenizer: Any, texts: list[str]) -> Tokens:
    """All documents one behind the other, each with the sign of its beginning."""
    ids = [each.ids for each in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array(each, np.int64) for each in ids])


def first_weights(shape: DecoderShape) -> dict[str, Array]:
    """Seeded noise: what adds to the hidden state is small, so that depth does not raise it."""
    random = np.random.default_rng(SEED)
    quiet = (2 * shape.layers) ** -0.5

    def normal(inputs: int, outputs: int, gain: float = 1.0) -> Array:
        draw = random.standard_normal((inputs, outputs), dtype=np.float32)
        return draw * np.float32(gain / math.sqrt(inputs))

    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ones = np.ones(shape.width, np.float32)
    weights: dict[str, Array] = {"embed": normal(shape.width, shape.vocabulary, 0.7).T.copy()}
    for n in range(shape.layers):
        weights |= {
            f"{n}.norm.attention": ones,
            f"{n}.q": normal(shape.width, heads),
            f"{n}.k": normal(shape.width, kv_heads),
            f"{n}.v": normal(shape.width, kv_heads),
            f"{n}.o": normal(heads, shape.width, quiet),
            f"{n}.norm.mlp": ones,
            f"{n}.gate": normal(shape.width, shape.feedforward),
            f"{n}.up": normal(shape.width, shape.feedforward),
            f"{n}.down": normal(shape.feedforward, shape.width, quiet),
        }
    return weights | {"norm": ones}


def train(
    net: LanguageNet, tokens: Tokens, phases: Sequence[tuple[int, int, int]] = PHASES
) -> float:
    """In place, over random windows, with a warm-up and then a cosine of the learning rate.

    Returns the mean loss of the last steps, in nats a token.
    """
    random = np.random.default_rng(SEED)
    adam = Adam(net.parameters(), decay=DECAY)
    steps = sum(count for *_, count in phases)
    began, step, losses = time.perf_counter(), 0, []
    for batch, length, count in phases:
        for _ in range(count):
            starts = random.integers(0, len(tokens) - length - 1, batch)
            windows = tokens[starts[:, None] + np.arange(length + 1)]
            loss, gradient = cross_entropy(net.forward(windows[:, :-1]), windows[:, 1:].reshape(-1))
            net.backward(gradient)
            clip(net.parameters())
            adam.step(RATE * min((step + 1) / WARM_UP, 0.02 + 0.98 * cosine(step / steps)))
            losses.append(loss)
            step += 1
            if step % TOLD == 0:
                taken = time.perf_counter() - began
                print(f"step {step}: {np.mean(losses[-TOLD:]):.3f}, {taken:.0f} s", flush=True)
    return float(np.mean(losses[-TOLD:]))


def cosine(part: float) -> float:
    """From 1 to 0 as the part of the way goes from 0 to 1."""
    return 0.5 * (1.0 + math.cos(math.pi * part))


def clip(parameters: list[Parameter]) -> None:
    """Shorten the gradient of all tensors together to `LARGEST_NORM`."""
    norm = math.sqrt(sum(float(np.vdot(p.gradient, p.gradient)) for p in parameters))
    if norm > LARGEST_NORM:
        for parameter in parameters:
            parameter.gradient *= LARGEST_NORM / norm


def evaluate(
    weights: dict[str, Array], tokenizer: Any, texts: list[str], shape: DecoderShape = SHAPE
) -> tuple[float, float]:
    """Perplexity a token, and bits a character, of texts in windows of `WINDOW` tokens."""
    tokens = stream(tokenizer, texts)
    net = LanguageNet(shape, weights)
    nats, count = 0.0, 0
    for start in range(0, len(tokens) - 1, WINDOW):
        window = tokens[start : start + WINDOW + 1]
        loss, _ = cross_entropy(net.forward(window[None, :-1]), window[1:])
        nats += loss * (len(window) - 1)
        count += len(window) - 1
    characters = len(tokenizer.decode(tokens.tolist(), skip_special_tokens=True))
    return math.exp(nats / count), nats / math.log(2) / characters


def stored(shape: DecoderShape, weights: dict[str, Array]) -> dict[str, np.ndarray]:
    """A model as `Toy` says that its file has it."""
    model = onnx.load_from_string(decoder_of(shape, weights))
    for tensor in model.graph.initializer:
        if "weight" in tensor.name or "cache" in tensor.name or tensor.name in weights:
            tensor.ClearField("raw_data")
    graph = model.SerializeToString(deterministic=True)
    kept: dict[str, np.ndarray] = {"graph": np.frombuffer(graph, np.uint8)}
    for name, array in weights.items():
        if array.ndim == 1:
            kept[name] = array.astype(np.float32)
            continue
        axis = 1 if name == "embed" else 0
        scale = np.abs(array).max(axis=axis, keepdims=True).astype(np.float32) / 127
        kept[name] = np.rint(array / scale).astype(np.int8)
        kept[f"{name}.scale"] = scale
    return kept


def write(toy: Toy) -> None:
    """Trains a model and writes it to `shards/language/data`, `toy` with its tokenizer."""
    from tokenizers import Tokenizer

    texts, _ = parted(documents())
    if toy is TOY:
        (DATA / TOKENIZER).write_text(tokenizer_of(texts).to_str())
    tokenizer = Tokenizer.from_file(str(DATA / TOKENIZER))
    tokens = stream(tokenizer, texts)
    print(f"{len(texts)} documents, {sum(map(len, texts))} characters, {len(tokens)} tokens")
    shape = SHAPES[toy]
    net = LanguageNet(shape, first_weights(shape))
    print(f"{sum(p.value.size for p in net.parameters())} weights")
    train(net, tokens)
    weights = {name: parameter.value for name, parameter in net.tensors.items()}
    np.savez_compressed(DATA / toy.file, **stored(shape, weights))  # type: ignore[arg-type]


def check(toy: Toy) -> None:
    """Prints size and held-out perplexity of a shipped model."""
    from tokenizers import Tokenizer

    data = data_file(TOKENIZER)
    _, held = parted(documents())
    tokenizer = Tokenizer.from_str(data.decode())
    perplexity, bits = evaluate(toy_weights(toy), tokenizer, held, SHAPES[toy])
    print(
        f"{len(data_file(toy.file)) + len(data)} bytes; of {len(held)} documents held out: "
        f"perplexity {perplexity:.1f} a token, {bits:.2f} bits a character"
    )


def main() -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(description="Train or check the toy language models.")
    parser.add_argument("--check", action="store_true", help="evaluate the shipped files only")
    parser.add_argument("--draft", action="store_true", help="toy-draft, which guesses for toy")
    options = parser.parse_args()
    toy = DRAFT if options.draft else TOY
    if not options.check:
        write(toy)
    check(toy)


if __name__ == "__main__":
    main()
