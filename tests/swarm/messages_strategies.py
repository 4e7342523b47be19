"""Strategies for tensors, and ways to damage bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from swarm.wire.messages import Features
from swarm.wire.tensors import DTYPES


def features(**changes: Any) -> Features:
    """A valid message, but for the changes."""
    fields: dict[str, Any] = {
        "id": "01J",
        "model": "m",
        "version": "1",
        "stage": 2,
        "reply": "_INBOX.a.b",
        "budget_us": 50_000,
        "tensors": {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
    }
    return Features(**fields | changes)


shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5)
names = st.text(min_size=1, max_size=30).filter(lambda s: s.isprintable())


def arrays() -> st.SearchStrategy[np.ndarray]:
    """Any datatype, any shape: 0-d and empty ones, and bit patterns such as NaN, too."""
    return st.sampled_from(sorted(DTYPES)).flatmap(lambda name: hnp.arrays(DTYPES[name], shapes))


tensor_maps = st.dictionaries(names, arrays(), max_size=5)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Bit for bit: NaN payloads and the sign of zero count."""
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


documents: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=20),
        st.binary(max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
