"""Quantizing a language model: smaller weights, and what a held-out text says of the loss."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from onnx import ModelProto

from shards.errors import ModelError
from shards.graph.fuse import fuse
from shards.graph.source import PROTOBUF_LIMIT, read_model, weight_bytes
from shards.language.decoder import LanguageHints, Quantized
from shards.language.rows import by_rows
from shards.language.split.graph import (
    MASK,
    POSITIONS,
    TOKENS,
    is_decoder,
    keep_whole_states,
    read_decoder,
)
from shards.language.split.split import kv_datatype_of, sizes_of
from shards.quantize import tools
from shards.quantize.measure import times_by_turns
from shards.quantize.quantize import MOST_BYTES, Tell
from shards.runtimes.ort import make_session
from shards.runtimes.ort_errors import reason_of
from shards.specs import DTYPES

LanguageMode = Literal["rows", "int4", "int8"]
MOST_TOKENS = 16_384  # of a text that are judged
_WINDOW = 256  # tokens, of which each is judged with those before it
_MOST_LOGITS = 64 << 20  # bytes of a window's
_HELD, _CHUNK, _TIMING_S = 128, 64, 0.5
_SMALL = frozenset({"MatMulInteger", "MatMulNBits"})


@dataclass(frozen=True)
class LanguageReport:
    """Bytes of the model; cross-entropy in nats a token over `tokens` of the text; median
    milliseconds, with one thread, of one token behind 128, and of a chunk of 64; each before and
    after. `products` are those by stored weights. `gain`: whether the change pays; `verdict` says
    why, or why not."""

    mode: LanguageMode
    bytes_before: int
    bytes_after: int
    tokens: int
    cross_entropy_before: float
    cross_entropy_after: float
    token_ms_before: float
    token_ms_after: float
    chunk_ms_before: float
    chunk_ms_after: float
    products: int
    gain: bool
    verdict: str

    @property
    def quantized(self) -> Quantized:
        """The part that a manifest keeps."""
        return Quantized(
            self.mode, self.tokens, self.cross_entropy_before, self.cross_entropy_after
        )

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON."""
        return asdict(self)


def quantize_language(
    model: bytes | str | os.PathLike[str],
    tokens: np.ndarray,
    *,
    mode: LanguageMode,
    max_drop: float,
    tell: Tell = lambda title, done, total: None,
) -> tuple[bytes, LanguageReport]:
    """The quantized model, whether it pays or not, and the report.

    `rows`: products in INT8 with a scale a row, the same bits in any batch. `int4`, `int8`: weights
    alone (`MatMulNBits`). `tokens`: ids INT64 [n] of a text that the model was not made with.
    `max_drop`: nats a token that may be lost. Raises ModelError.
    """
    tell("reading and preparing the model", 0, 0)
    source, _ = read_model(model)
    if not is_decoder(source):
        raise ModelError("this is no language model with its cache: quantize it without a text")
    if weight_bytes(source) >= PROTOBUF_LIMIT:
        raise ModelError("the model has 2 GiB of weights or more: ONNX Runtime's tools need less")
    keep_whole_states(source)
    judge = _Judge(source, tokens)
    base = tools.with_products(tools.prepare(source))
    made = by_rows(base) if mode == "rows" else tools.weights_only(base, bits=int(mode[3:]))
    products = sum(node.op_type in _SMALL for node in made.graph.node)
    if not products:
        raise ModelError("the model has no matrix products with stored weights in floating point")
    before, after = base.SerializeToString(), made.SerializeToString()
    losses = []
    for title, data in (("judging the model", before), ("judging the quantized", after)):
        losses.append(judge.cross_entropy(data, partial(_told, tell, title, judge.count)))
    tell("timing both by turns", 0, 0)
    token = times_by_turns([before, after], judge.feed(1, _HELD), _TIMING_S)
    chunk = times_by_turns([before, after], judge.feed(_CHUNK, 0), _TIMING_S)
    size, lost = len(after) / source.ByteSize(), losses[1] - losses[0]
    gain = size <= MOST_BYTES and lost <= max_drop
    report = LanguageReport(
        mode=mode,
        bytes_before=source.ByteSize(),
        bytes_after=len(after),
        tokens=judge.count,
        cross_entropy_before=round(losses[0], 5),
        cross_entropy_after=round(losses[1], 5),
        token_ms_before=round(token[0], 4),
        token_ms_after=round(token[1], 4),
        chunk_ms_before=round(chunk[0], 4),
        chunk_ms_after=round(chunk[1], 4),
        products=products,
        gain=gain,
        verdict=f"{'it pays' if gain else 'no gain'}: {size:.2f}x the bytes, "
        f"{lost:+.4f} nats a token",
    )
    return after, report


def _told(tell: Tell, title: str, total: int, done: int) -> None:
    tell(title, done, total)


class _Judge:
    """A text's cross-entropy by a model, in windows."""

    def __init__(self, source: ModelProto, tokens: np.ndarray) -> None:
        decoder = read_decoder(fuse(source))
        sizes = sizes_of(decoder, LanguageHints(), [])
        self._logits, self._vocabulary = decoder.logits, sizes["vocabulary"]
        self._dtype = DTYPES[kv_datatype_of(decoder)]
        self._states = [name for state in decoder.states for name in state.past]
        self._shape = sizes["kv_heads"], sizes["head_dim"]
        self._inputs = {value.name for value in source.graph.input}
        self._tokens = tokens[: MOST_TOKENS + 1].astype(np.int64)
        self.count = len(self._tokens) - 1
        if self.count < 1:
            raise ModelError("the text has fewer than two tokens: nothing is to be judged by it")
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocabulary:
            raise ModelError(
                f"the text has tokens up to {tokens.max()}, the model {self._vocabulary}: the "
                "tokenizer is another model's"
            )

    def feed(self, count: int, held: int, start: int = 0) -> Mapping[str, np.ndarray]:
        """Inputs of a run of tokens from `start` on, behind so many that are all zeros."""
        ids = np.resize(self._tokens[start : start + count], count)
        heads, width = self._shape
        feeds = {
            TOKENS: ids[None],
            MASK: np.ones((1, held + count), np.int64),
            POSITIONS: np.arange(held, held + count, dtype=np.int64)[None],
        } | {name: np.zeros((1, heads, held, width), self._dtype) for name in self._states}
        return {name: array for name, array in feeds.items() if name in self._inputs}

    def cross_entropy(self, model: bytes, done: Callable[[int], None]) -> float:
        """Nats a token. done: hears how many were judged so far."""
        session = make_session(model)
        total = 0.0
        for start, count in self._windows():
            try:
                (logits,) = session.run([self._logits], dict(self.feed(count, 0, start)))
            except Exception as error:  # pybind raises a dozen unrelated types here
                raise ModelError(
                    f"the model does not run on the text: {reason_of(error)}"
                ) from error
            rows = np.asarray(logits[0], np.float32)
            following = self._tokens[start + 1 : start + 1 + count]
            largest = rows.max(axis=1)
            sums = np.log(np.exp(rows - largest[:, None]).sum(axis=1, dtype=np.float64))
            chosen = rows[np.arange(count), following]
            total += float((sums + largest - chosen).sum())
            done(start + count)
        if not np.isfinite(total):
            raise ModelError("the model's logits are not finite on this text")
        return total / self.count

    def _windows(self) -> Iterator[tuple[int, int]]:
        size = max(1, min(_WINDOW, _MOST_LOGITS // (4 * self._vocabulary)))
        for start in range(0, self.count, size):
            yield start, min(size, self.count - start)
