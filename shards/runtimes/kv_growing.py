"""A decoder's stage whose states each run makes anew: graphs of plain operators, `Attention`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shards.runtimes.kv_stage import KvStage, StageForm


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
        given = {
            "mask": np.ones((1, behind), np.int64),
            "positions": np.arange(position, behind, dtype=np.int64)[None],
            "seqlens_k": np.array([behind - 1], np.int32),
            "total_sequence_length": np.array(behind, np.int32),
            "logits_from": np.array([-logits], np.int64),
        }
        feeds = {form.receives: np.ascontiguousarray(rows)}
        feeds |= {name: given[role] for role, name in form.feeds.items()}
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

    def _copy(self, source: int, target: int, tokens: int) -> None:
        self._kv[target] = [kv[:, :, :tokens].copy() for kv in self._kv[source]]

    def _part(self, slot: int, state: int, start: int, end: int) -> np.ndarray:
        return self._kv[slot][state][0, :, start:end]

    def _put(self, slot: int, start: int, end: int, arrays: np.ndarray) -> None:
        self._kv[slot] = [
            np.concatenate(
                [old[:, :, :start], new[None], *([old[:, :, end:]] if start else [])], axis=2
            )
            for old, new in zip(self._kv[slot], arrays, strict=True)
        ]
