"""A decoder's stage by ONNX Runtime: layers, and the keys and values (KV) of its sessions.

A *slot* holds the KV of one session. `SharedKv` has one array [slots, kv_heads, context, head_dim]
a state. A run is bound to a range of slots, which the layers read and write in place. `GrowingKv`
is for graphs whose states are made anew by each run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shards.errors import DoesNotFit, InputError, RunError
from shards.runtimes.device import CPU
from shards.runtimes.ort import Provider, make_session
from shards.runtimes.ort_errors import reason_of
from shards.specs import DTYPES

# Bindings that are kept: one for each range of slots and number of tokens that a run had lately.
_MOST_BINDINGS = 64


@dataclass(frozen=True, kw_only=True)
class StageForm:
    """The form of a decoder's stage, as `shards.language.decoder` describes it.

    `receives` is the name of its token ids or hidden states, `sends` of its hidden states or
    logits; `states` are pairs of names, what goes in and what replaces it; `feeds` names the other
    inputs by role.
    """

    first: bool
    last: bool
    receives: str
    sends: str
    states: tuple[tuple[str, str], ...]
    feeds: Mapping[str, str]
    width: int
    vocabulary: int
    kv_heads: int
    head_dim: int
    kv_datatype: str = "FP32"
    exact_batch: bool = True

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the stage's keys and values of one token."""
        size = DTYPES[self.kv_datatype].itemsize
        return len(self.states) * self.kv_heads * self.head_dim * size


def check_kv_fits(title: str, slots: int, context: int, token_bytes: int, have: int | None) -> None:
    """Raise DoesNotFit, with the context that would fit, where KV need more than `have` bytes."""
    need = slots * context * token_bytes
    if have is None or need <= have:
        return
    fits = have // max(1, slots * token_bytes)
    raise DoesNotFit(
        f"RESOURCE_EXHAUSTED: {title} needs {need / 1e6:.0f} MB for the keys and values of {slots} "
        f"sessions of {context} tokens, this machine has {have / 1e6:.0f} MB left: "
        f"a context of {fits} tokens fits"
    )


class KvStage(ABC):
    """The layers of one stage, with the KV of its sessions, one slot each; a subclass knows where
    those are.

    A run is a function of (input, position): the same rows at the same positions give the same
    bits, in any batch, and a later run over positions that were computed before replaces them. The
    caller knows how many tokens each slot holds, and never asks for positions that lie behind a
    gap. One thread runs at a time.

    first, last: whether it takes token ids, and gives logits; other stages take and give hidden
    states. width: elements of the hidden state of one token. context: tokens that a slot holds at
    most. vocabulary: ids below it are tokens of the model: it takes no other ones, and gives no
    other ones. device: where it computes, and keeps the KV if the device has a memory of its own.

    The level "basic" computes the very bits that the split was proved with. Raises ModelError when
    ONNX Runtime refuses the model. The constructor blocks.
    """

    def __init__(
        self,
        model: bytes | Path,
        form: StageForm,
        *,
        slots: int,
        context: int,
        threads: int = 1,
        providers: Sequence[Provider] = ("CPUExecutionProvider",),
    ) -> None:
        self.form, self.device = form, CPU
        self.first, self.last, self.width = form.first, form.last, form.width
        self.slots, self.context = slots, context
        self.kv_bytes_per_token, self.vocabulary = form.kv_bytes_per_token, form.vocabulary
        self._dtype = DTYPES[form.kv_datatype]
        self._held = [0] * slots
        self._session: Any = make_session(
            model, level="basic", threads=threads, providers=providers
        )

    def run(
        self, rows: np.ndarray, slot: int, positions: np.ndarray, *, logits: int = 1
    ) -> np.ndarray:
        """Compute the next tokens of the sessions in the slots `slot` to `slot + b`.

        rows: [b, s], int64, for the first stage, else [b, s, width], float32. positions: [b],
        int64, the tokens that each slot holds before. s is 1 for a batch of several slots; one
        slot takes a chunk of any s. Returns [b, s, width], float32; the last stage
        [b, vocabulary], float32: the logits behind each slot's last token; with `logits` above 1
        those behind so many of the last tokens, [b, logits, vocabulary]. Raises `RunError`,
        `InputError`.
        """
        if self._session is None:
            raise RunError("the stage is closed: load it again")
        places = [int(position) for position in positions]
        self._check(rows, slot, places, logits)
        try:
            made = self._run(rows, slot, places, logits)
        except (RunError, InputError):
            raise
        except Exception as error:  # pybind raises a dozen unrelated types here
            raise RunError(f"the stage failed: {reason_of(error)}") from error
        for at, position in enumerate(places, slot):
            # A session begins at 0: what the slot held before is another session's.
            behind = position + rows.shape[1]
            self._held[at] = behind if position == 0 else max(self._held[at], behind)
        return made

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the KV of the first tokens of a slot into another one. Raises InputError."""
        self._check_slot(source)
        self._check_slot(target)
        if not 0 <= tokens <= self._held[source]:
            held = f"within the {self._held[source]} of slot {source}"
            raise InputError("tokens", held, str(tokens))
        if source != target:
            self._copy(source, target, tokens)
            self._held[target] = tokens

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        self._session = None

    def _check(self, rows: np.ndarray, slot: int, places: list[int], logits: int) -> None:
        """Raise InputError unless these rows can be run."""
        form = self.form
        shape = (len(places), "s") if form.first else (len(places), "s", form.width)
        kind = np.int64 if form.first else np.float32
        want = f"{np.dtype(kind).name}{list(shape)}"
        got = f"{rows.dtype.name}{list(rows.shape)}"
        if rows.dtype != kind or rows.ndim != len(shape) or not places:
            raise InputError("rows", want, got)
        if rows.shape[0] != len(places) or rows.shape[2:] != shape[2:] or not rows.shape[1]:
            raise InputError("rows", want, got)
        if rows.shape[1] > 1 and rows.shape[0] > 1:
            raise InputError("rows", "one token of each of several slots", got)
        if not 0 < logits <= rows.shape[1]:
            raise InputError("logits", f"1 to {rows.shape[1]}", str(logits))
        self._check_slot(slot)
        self._check_slot(slot + len(places) - 1)
        for at, position in enumerate(places, slot):
            if not 0 <= position <= self._held[at]:
                raise InputError(
                    "positions", f"at most {self._held[at]}, which slot {at} holds", str(position)
                )
            if position + rows.shape[1] > self.context:
                raise InputError(
                    "positions", f"at most {self.context} tokens", f"{position + rows.shape[1]}"
                )
        if form.first and not (int(rows.min()) >= 0 and int(rows.max()) < form.vocabulary):
            raise InputError(
                "rows", f"ids below {form.vocabulary}", f"{int(rows.min())} to {int(rows.max())}"
            )

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise InputError("slot", f"0 to {self.slots - 1}", str(slot))

    @abstractmethod
    def _run(self, rows: np.ndarray, slot: int, places: list[int], logits: int) -> np.ndarray: ...

    @abstractmethod
    def _copy(self, source: int, target: int, tokens: int) -> None: ...


@dataclass
class _Binding:
    """Arrays of one shape of runs, bound to one range of slots. The binding has addresses alone."""

    binding: Any
    rows: np.ndarray
    feeds: dict[str, np.ndarray]
    made: np.ndarray


class SharedKv(KvStage):
    """States are read and written in place, by GroupQueryAttention.

    All memory of the KV is asked for by the constructor: slots x context x bytes a token.
    """

    def __init__(self, model: bytes | Path, form: StageForm, **settings: Any) -> None:
        super().__init__(model, form, **settings)
        shape = (self.slots, form.kv_heads, self.context, form.head_dim)
        self._kv = [np.zeros(shape, self._dtype) for _ in form.states]
        self._bindings: OrderedDict[tuple[int, int, int, int], _Binding] = OrderedDict()

    def close(self) -> None:
        super().close()
        self._bindings.clear()
        self._kv = []

    def _run(self, rows: np.ndarray, slot: int, places: list[int], logits: int) -> np.ndarray:
        if len(places) > 1 and not self.form.exact_batch:
            each = (
                self._run(rows[at : at + 1], slot + at, [position], logits)
                for at, position in enumerate(places)
            )
            return np.concatenate(list(each))
        batch, tokens = len(places), rows.shape[1]
        bound = self._bound(slot, batch, tokens, logits)
        bound.rows[...] = rows
        bound.feeds["total_sequence_length"][()] = max(places) + tokens
        for at, position in enumerate(places):
            bound.feeds["seqlens_k"][at] = position + tokens - 1
            bound.feeds["positions"][at] = range(position, position + tokens)
        self._session.run_with_iobinding(bound.binding)
        made = bound.made
        if not self.last:
            return made.copy()
        return made[:, -1].copy() if logits == 1 else made[:, -logits:].copy()

    def _bound(self, slot: int, batch: int, tokens: int, logits: int) -> _Binding:
        """The binding of a range of slots and a number of tokens. An output keeps its shape."""
        key = slot, batch, tokens, logits
        found = self._bindings.get(key)
        if found is not None:
            self._bindings.move_to_end(key)
            return found
        form = self.form
        hidden = (batch, tokens, form.width)
        rows = np.zeros(hidden[:2], np.int64) if form.first else np.zeros(hidden, np.float32)
        wanted = logits if "logits_from" in form.feeds else tokens
        made = np.empty((batch, wanted, form.vocabulary) if form.last else hidden, np.float32)
        feeds: dict[str, np.ndarray] = {
            "seqlens_k": np.zeros(batch, np.int32),
            "total_sequence_length": np.zeros((), np.int32),
            "positions": np.zeros((batch, tokens), np.int64),
            "logits_from": np.array([-logits], np.int64),
        }
        binding = self._session.io_binding()
        _bind_input(binding, form.receives, rows)
        _bind_output(binding, form.sends, made)
        for role, name in form.feeds.items():
            _bind_input(binding, name, feeds[role])
        for (past, present), kv in zip(form.states, self._kv, strict=True):
            part = kv[slot : slot + batch]
            _bind_input(binding, past, part)
            _bind_output(binding, present, part)
        self._bindings[key] = bound = _Binding(binding, rows, feeds, made)
        if len(self._bindings) > _MOST_BINDINGS:
            self._bindings.popitem(last=False)
        return bound

    def _copy(self, source: int, target: int, tokens: int) -> None:
        for kv in self._kv:
            kv[target, :, :tokens] = kv[source, :, :tokens]


def _bind_input(binding: Any, name: str, array: np.ndarray) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: np.ndarray) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
