"""Prove the stages of a language model against the whole: prefill, then token after token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shards.errors import ModelError
from shards.language.decoder import DecoderProof
from shards.language.kv_stage import KvStage, StageForm
from shards.language.split.graph import MASK, POSITIONS, TOKENS, DecoderGraph
from shards.runtimes.ort import make_session
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.synthetic import (
    TOLERANCE,
    TOLERANCE_HALF,
    TOLERANCE_QUANTIZED,
    deviation,
)
from shards.specs import DTYPES

_PROMPT = 24
_CHUNK = 16
_DECODED = 64
# Tokens of sessions that are decoded in one run, and one by one.
_RAGGED = (5, 17, 9)
_RAGGED_STEPS = 8


@dataclass
class DecoderReport:
    """The outcome of a proof. `times_ms` is the median time of each stage for one token. `proof`
    is None where there was no whole to compare with."""

    times_ms: list[float]
    exact_batch: bool
    proof: DecoderProof | None
    notes: list[str] = field(default_factory=list)


class _Whole:
    """The whole model in one session, whose states grow from run to run."""

    def __init__(self, model: bytes, decoder: DecoderGraph, form: StageForm) -> None:
        self._session = make_session(model, level="basic")
        self._decoder = decoder
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._held = 0
        empty = np.zeros((1, form.kv_heads, 0, form.head_dim), DTYPES[form.kv_datatype])
        self._past = {name: empty for state in decoder.states for name in state.past}

    def run(self, tokens: np.ndarray) -> np.ndarray:
        """The logits behind the last of these tokens: [vocabulary]. tokens: INT64 [s]."""
        states = [
            pair for s in self._decoder.states for pair in zip(s.past, s.present, strict=True)
        ]
        behind = self._held + len(tokens)
        feeds = {
            TOKENS: tokens[None],
            MASK: np.ones((1, behind), np.int64),
            POSITIONS: np.arange(self._held, behind, dtype=np.int64)[None],
            **self._past,
        }
        feeds = {name: array for name, array in feeds.items() if name in self._inputs}
        names = [self._decoder.logits, *(present for _, present in states)]
        logits, *grown = self._session.run(names, feeds)
        self._past = {past: array for (past, _), array in zip(states, grown, strict=True)}
        self._held = behind
        return np.asarray(logits[0, -1])


def check_decoder(
    whole: bytes | None, unchanged: bytes | None, decoder: DecoderGraph, stages: Sequence[KvStage]
) -> DecoderReport:
    """Compare the stages with the whole at BASIC, over a seeded prompt and 64 tokens behind it.

    `whole` is the model as it was cut, `unchanged` as it was read; None for one that is too large.
    Each stage has slots and a context of its own. Both compute the same runs, so their bits are
    equal; where they are not, the proof has the figures and a note says so. Raises ModelError when
    a token differs, or logits by more than `tolerance_of` allows.
    """
    notes: list[str] = []
    context = min(stage.context for stage in stages)
    prompt = np.random.default_rng(0).integers(0, stages[0].form.vocabulary, _PROMPT)
    prompt = prompt[: max(1, context // 2)]
    steps = min(_DECODED, context - len(prompt))
    times: list[list[float]] = [[] for _ in stages]
    apart, found = 0.0, _Found(tolerance_of(decoder))
    try:
        reference = None if whole is None else _Whole(whole, decoder, stages[0].form)
        if whole is None:
            notes.append("unproven: the whole is too large for one file, so the parts ran alone")
        if whole is not None and unchanged is not None:
            apart = _apart(whole, unchanged, decoder, stages[0].form, prompt)
            if apart:
                notes.append(
                    f"sums at the ends of layers are nodes of their own: logits are {apart:.1g} "
                    "off the file's, wherever it is cut"
                )
        rows, held = np.array_split(prompt, range(_CHUNK, len(prompt), _CHUNK)), 0
        queue = list(rows)
        for step in range(len(rows) + steps):
            tokens = queue[step]
            logits = _chain(stages, tokens, 0, held, times if step >= len(rows) else None)[0]
            held += len(tokens)
            expected = logits if reference is None else reference.run(tokens)
            found.compare(expected, logits, held)
            if step >= len(rows) - 1:
                queue.append(np.array([expected.argmax()], np.int64))
        proof = None if reference is None else found.proof(apart)
        del reference
        if proof is not None and proof.differing:
            notes.append(str(proof))
        batch = _ragged(stages, context)
    except ModelError:
        raise
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise ModelError(f"the language model does not run: {reason_of(error)}") from error
    if not batch:
        notes.append("sessions run one by one: a shared run would change their bits")
    return DecoderReport([statistics.median(t) if t else 0.0 for t in times], batch, proof, notes)


def tolerance_of(decoder: DecoderGraph) -> float:
    """How far logits may be from the whole's, relative to the largest: as the self-test of a stage
    allows for its arithmetic."""
    if any("NBits" in n.op_type or "Integer" in n.op_type for n in decoder.graph.nodes):
        return TOLERANCE_QUANTIZED
    half = any(kind.datatype == "FP16" for kind in decoder.types.values())
    return TOLERANCE_HALF if half else TOLERANCE


@dataclass
class _Found:
    """What the runs of a proof have shown so far."""

    tolerance: float
    runs: int = 0
    differing: int = 0
    deviation: float = 0.0

    def compare(self, expected: np.ndarray, logits: np.ndarray, position: int) -> None:
        """Of one run, whose last token has this position. Raises ModelError."""
        self.runs += 1
        if np.array_equal(expected, logits):
            return
        self.differing += 1
        self.deviation = max(self.deviation, deviation(expected, logits))
        defect = "this is a defect, please report the model; other cuts may work"
        if int(expected.argmax()) != int(logits.argmax()):
            raise ModelError(
                f"at position {position} the stages say another token than the whole (logits "
                f"{self.deviation:.1g} off): {defect}"
            )
        if not self.deviation <= self.tolerance:
            raise ModelError(
                f"at position {position} the stages' logits are {self.deviation:.1g} off the "
                f"whole's, more than {self.tolerance:.0g}: {defect}"
            )

    def proof(self, apart: float) -> DecoderProof:
        """Of all runs."""
        return DecoderProof(self.runs, self.differing, self.deviation, apart)


def _apart(
    whole: bytes, unchanged: bytes, decoder: DecoderGraph, form: StageForm, prompt: np.ndarray
) -> float:
    ours, theirs = (_Whole(model, decoder, form).run(prompt) for model in (whole, unchanged))
    return deviation(theirs, ours)


def _chain(
    stages: Sequence[KvStage],
    tokens: np.ndarray,
    slot: int,
    held: int,
    times: list[list[float]] | None = None,
) -> np.ndarray:
    """The logits [1, vocabulary] behind tokens that go through all stages."""
    rows: np.ndarray = tokens[None].astype(np.int64)
    for number, stage in enumerate(stages):
        begin = time.perf_counter()
        rows = stage.run(rows, slot, np.array([held]))
        if times is not None:
            times[number].append((time.perf_counter() - begin) * 1e3)
    return rows


def _ragged(stages: Sequence[KvStage], context: int) -> bool:
    """Whether sessions of different lengths give the same bits in one run as one by one."""
    vocabulary = stages[0].form.vocabulary
    random = np.random.default_rng(1)
    lengths = [min(length, context - _RAGGED_STEPS) for length in _RAGGED]
    if min(lengths) < 1 or min(stage.slots for stage in stages) < len(lengths):
        return False
    prompts = [random.integers(0, vocabulary, length) for length in lengths]
    following = random.integers(0, vocabulary, (_RAGGED_STEPS, len(lengths)))
    alone = []
    for slot, prompt in enumerate(prompts):
        _chain(stages, prompt, slot, 0)
        held = range(len(prompt), len(prompt) + _RAGGED_STEPS)
        alone.append(
            [
                _chain(stages, t[slot : slot + 1], slot, at)
                for t, at in zip(following, held, strict=True)
            ]
        )
    for step, tokens in enumerate(following):
        rows: np.ndarray = tokens[:, None].astype(np.int64)
        positions = np.array([length + step for length in lengths])
        for stage in stages:
            rows = stage.run(rows, 0, positions)
        if not np.array_equal(rows, np.concatenate([each[step] for each in alone])):
            return False
    return True
