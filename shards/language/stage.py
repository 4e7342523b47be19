"""The seam between those who serve a decoder's stage and those who compute it. numpy only."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class DecoderStage(Protocol):
    """The layers of one stage, with the keys and values (KV) of its sessions, one slot each.

    A run is a function of (input, position): the same rows at the same positions give the same
    bits, in any batch, and a later run over positions that were computed before replaces them. The
    caller knows how many tokens each slot holds, and never asks for positions that lie behind a
    gap. One thread runs at a time.
    """

    first: bool
    """Whether it takes token ids; other stages take hidden states."""
    last: bool
    """Whether it gives logits; other stages give hidden states."""
    device: str
    """Where it computes, and keeps the KV if the device has a memory of its own."""
    width: int
    """Elements of the hidden state of one token."""
    context: int
    """Tokens that a slot holds at most."""
    slots: int
    kv_bytes_per_token: int
    vocabulary: int
    """Ids below it are tokens of the model: it takes no other ones, and gives no other ones."""

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
        ...

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the KV of the first tokens of a slot into another one."""
        ...

    def take_out(self, slot: int, start: int, end: int) -> bytes:
        """The KV of the tokens `[start, end)` of a slot, for a stage of the same layers."""
        ...

    def put_in(self, slot: int, start: int, end: int, kv: bytes) -> None:
        """Take KV that `take_out` of another process gave. Raises `InputError`."""
        ...

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        ...
