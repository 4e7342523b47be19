"""A decoder's stage whose states each run makes anew: graphs of plain operators, `Attention`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shards.language.kv_stage import KvStage, StageForm


class GrowingKv(KvStage):
    """Sessions run one after the other, so their bits never depend on each other.

    A run copies the session's KV once: a token costs time in proportion to the tokens before it,
    and several sessions gain nothing by sharing a turn. The KV take memory as they grow, up to
    slots x context x bytes a token, and once more those of the session that runs.
    """

    def __init__(self, model: bytes | Path, form: StageForm, **settings: Any) -> None:
        super().__init__(model, form, **settings)
        self._kv = [self._empty() for _ in range(self.slots)]
        self._names = [form.sends, *(present for _, present in form.states)]

    def close(self) -> None:
        super().close()
        self._kv = []

    def _empty(self) -> list[np.ndarray]:
        shape = (1, self.form.kv_heads, 0, self.form.head_dim)
        return [np.zeros(shape, self._dtype) for _ in self.form.states]

    def _run(self, rows: np.ndarray, slot: int, places: list[int], logits: int) -> np.ndarray:
        each = [
            self._run_one(rows[at : at + 1], slot + at, position, logits)
            for at, position in enumerate(places)
        ]
        return each[0] if len(each) == 1 else np.concatenate(each)

    def _run_one(self, rows: np.ndarray, slot: int, position: int, logits: int) -> np.ndarray:
        form = self.form
        behind = position + rows.shape[1]
        feeds = self._feeds(rows, position, logits)
        held = self._kv[slot]
        for (past, _), array in zip(form.states, held, strict=True):
            feeds[past] = np.ascontiguousarray(array[:, :, :position])
        made, *grown = self._session.run(self._names, feeds)
        # A repeated run over tokens in the middle leaves those behind as they were.
        self._kv[slot] = [
            np.concatenate([new, old[:, :, behind:]], axis=2)
            if position and old.shape[2] > behind
            else new
            for new, old in zip(grown, held, strict=True)
        ]
        if not self.last:
            return np.asarray(made)
        return np.asarray(made[:, -1] if logits == 1 else made[:, -logits:])

    def _feeds(self, rows: np.ndarray, position: int, logits: int) -> dict[str, np.ndarray]:
        """The inputs beside the states."""
        behind = position + rows.shape[1]
        given = {
            "mask": np.ones((1, behind), np.int64),
            "positions": np.arange(position, behind, dtype=np.int64)[None],
            "seqlens_k": np.array([behind - 1], np.int32),
            "total_sequence_length": np.array(behind, np.int32),
            "logits_from": np.array([-logits], np.int64),
        }
        feeds = {self.form.receives: np.ascontiguousarray(rows)}
        return feeds | {name: given[role] for role, name in self.form.feeds.items()}

    def _copy(self, source: int, target: int, tokens: int) -> None:
        self._kv[target] = [kv[:, :, :tokens].copy() for kv in self._kv[source]]


class DeviceKv(GrowingKv):
    """As `GrowingKv`, with the KV in a device's memory: a run reads and makes them there, and only
    tokens or hidden states cross. Copies of a session go by the machine's own memory. `memory` is
    ONNX Runtime's name of the device's memory.
    """

    def __init__(
        self, model: bytes | Path, form: StageForm, *, device: str, memory: str, **settings: Any
    ) -> None:
        self._memory = memory
        super().__init__(model, form, **settings)
        self.device = device
        self._values: list[list[Any]] = [[] for _ in range(self.slots)]

    def close(self) -> None:
        super().close()
        self._values = []

    def _run_one(self, rows: np.ndarray, slot: int, position: int, logits: int) -> np.ndarray:
        form, held = self.form, self._values[slot]
        binding = self._session.io_binding()
        for name, array in self._feeds(rows, position, logits).items():
            binding.bind_cpu_input(name, array)
        for at, (past, present) in enumerate(form.states):
            if position and held[at].shape()[2] == position:
                binding.bind_ortvalue_input(past, held[at])
            else:  # a session begins, or a run is repeated over tokens in the middle
                binding.bind_cpu_input(past, self._part_of(held, at, position))
            binding.bind_output(present, self._memory)
        binding.bind_output(form.sends, "cpu")
        self._session.run_with_iobinding(binding)
        *grown, made = binding.get_outputs()
        behind = position + rows.shape[1]
        self._values[slot] = [
            self._upload(np.concatenate([new.numpy(), old.numpy()[:, :, behind:]], axis=2))
            if position and old.shape()[2] > behind
            else new
            for new, old in zip(grown, held or grown, strict=True)
        ]
        result = made.numpy()
        if not self.last:
            return np.asarray(result)
        return np.asarray(result[:, -1] if logits == 1 else result[:, -logits:])

    def _part_of(self, held: list[Any], state: int, tokens: int) -> np.ndarray:
        """The first tokens of a state, as an array: [1, kv_heads, tokens, head_dim]."""
        if not tokens:
            return np.zeros((1, self.form.kv_heads, 0, self.form.head_dim), self._dtype)
        return np.ascontiguousarray(held[state].numpy()[:, :, :tokens])

    def _upload(self, array: np.ndarray) -> Any:
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self._memory, 0)

    def _copy(self, source: int, target: int, tokens: int) -> None:
        held = self._values[source]
        self._values[target] = [
            self._upload(self._part_of(held, at, tokens)) for at in range(len(held))
        ]
