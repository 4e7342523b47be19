"""What is known about a tensor: its sizes, where the rows of a batch lie, what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shards.batch.sizes import ONE, ROWS, Size, product

Dims = tuple[Size, ...]


class RowsMayMix(Exception):
    """An operator mixes the rows of a batch, or nothing shows that it keeps them apart."""


@dataclass(frozen=True, slots=True)
class Number:
    """What indices into a batch hold: row · stride + i, with i from 0 to below `below`.

    Where `first` is set, this is so for the first index along the last axis alone.
    """

    stride: Size = ONE
    below: Size = ONE
    first: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows lie: along `axis`, whose index is (o · rows + row) · inner + i.

    `outer` and `inner` are 1 unless a Reshape merged the rows' axis with its neighbours. With
    `number` the tensor holds indices that tell the rows apart, and no values of a row alone.
    """

    axis: int
    outer: Size = ONE
    inner: Size = ONE
    number: Number | None = None

    @property
    def size(self) -> Size:
        """The size of the axis."""
        return self.outer * ROWS * self.inner

    def at(self, axis: int) -> Rows:
        """The same rows along another axis."""
        return replace(self, axis=axis)

    def plain(self) -> Rows:
        """The same rows, holding values."""
        return replace(self, number=None)

    def beside(self, other: Rows) -> bool:
        """Whether both cut their axis into rows in the same way."""
        return (self.outer, self.inner) == (other.outer, other.inner)


@dataclass(frozen=True, slots=True)
class Value:
    """What is known about one tensor, in every run.

    With `rows`, each row depends on the same row of the inputs alone. Without, the tensor is the
    same whatever the inputs hold; then it depends on the number of rows only where `elements` say
    so. `mixed` says why neither is known to hold; the sizes may be known even then. `dims` is None
    where the rank is unknown. `elements` are the formulas of a small integer tensor, in C order.
    `below` says that it holds indices from 0 to below that. `array` is a stored tensor.
    """

    dims: Dims | None
    rows: Rows | None = None
    elements: tuple[Size, ...] | None = None
    array: np.ndarray | None = field(default=None, compare=False)
    mixed: str = ""
    below: Size | None = None

    @property
    def rank(self) -> int:
        """The number of axes. Raises RowsMayMix where it is unknown."""
        return len(self.known)

    @property
    def known(self) -> Dims:
        """The sizes. Raises RowsMayMix where the rank is unknown."""
        if self.dims is None:
            raise RowsMayMix("the rank of its input is unknown")
        return self.dims

    @property
    def grid(self) -> np.ndarray | None:
        """The formulas in the tensor's shape, as objects; None where they are unknown."""
        if self.elements is None:
            return None
        made = np.empty(len(self.elements), object)
        made[:] = self.elements
        return made.reshape([size.number or 0 for size in self.known])

    @property
    def counts_rows(self) -> bool:
        """Whether it holds formulas of the number of rows."""
        return any(size.counts_rows for size in self.elements or ())

    @property
    def same(self) -> bool:
        """Whether it is the same in every run on inputs of these shapes, of any number of rows."""
        return not self.mixed and self.rows is None and not self.counts_rows


def with_rows(dims: Sequence[Size], rows: Rows, below: Size | None = None) -> Value:
    """A tensor with rows. Raises RowsMayMix unless the sizes are those of rows along one axis."""
    if rows.outer.counts_rows or rows.inner.counts_rows:
        raise RowsMayMix(f"axis {rows.axis} of its output has the size {rows.size}")
    for axis, size in enumerate(dims):
        if size != rows.size if axis == rows.axis else size.counts_rows:
            raise RowsMayMix(f"axis {axis} of its output has the size {size}")
    return Value(tuple(dims), rows, below=below)


def without_rows(dims: Sequence[Size] | None, below: Size | None = None) -> Value:
    """A tensor that depends on no data. Raises RowsMayMix where its sizes depend on the rows'
    number."""
    for axis, size in enumerate(dims or ()):
        if size.counts_rows:
            raise RowsMayMix(f"axis {axis} of its output has the size {size}")
    return Value(None if dims is None else tuple(dims), below=below)


def made(dims: Sequence[Size], rows: Rows | None, below: Size | None = None) -> Value:
    """A tensor of these sizes, with rows or without. Raises RowsMayMix as the two do."""
    return without_rows(dims, below) if rows is None else with_rows(dims, rows, below)


def numbers(grid: np.ndarray) -> Value:
    """A tensor that holds these formulas: an array of objects, or one of them."""
    grid = np.asarray(grid, object)
    return Value(tuple(Size.of(n) for n in grid.shape), None, tuple(grid.reshape(-1).tolist()))


def broadcast(one: Size, other: Size) -> Size | None:
    """The size that two axes have together in every run that does not fail; None if unknown.

    The two are equal, or one of them is 1. So a size and a bound of it are the bound together.
    """
    if one == other or other == ONE:
        return one
    if one == ONE:
        return other
    for bounded, bound in ((one, other), (other, one)):
        if bounded.symbol is not None and bound in bounded.symbol.at_most:
            return bound
    return None


def reshaped(value: Value, target: Sequence[Size]) -> Value:
    """A tensor with rows in new sizes that hold as many elements. Raises RowsMayMix.

    In memory the elements are `before` · rows · `after`. The rows stay apart where one axis of the
    target has all rows, with whole parts of `before` and `after` around them.
    """
    dims, rows = value.known, value.rows
    if product(dims) != product(target):
        raise RowsMayMix(
            f"it turns {_shape(dims)} into {_shape(target)}, which are not known to be as many"
        )
    if rows is None:
        return without_rows(target, value.below)
    if rows.number is not None and rows.number.first and target[-1:] != dims[-1:]:
        raise RowsMayMix("it moves the number that a row has in its batch")
    before = product(dims[: rows.axis]) * rows.outer
    after = rows.inner * product(dims[rows.axis + 1 :])
    axis = next((axis for axis, size in enumerate(target) if size.counts_rows), None)
    if axis is not None:
        outer = before.over(product(target[:axis]))
        inner = after.over(product(target[axis + 1 :]))
        if outer is not None and inner is not None:
            return with_rows(target, Rows(axis, outer, inner, rows.number), value.below)
    raise RowsMayMix(f"it turns {_shape(dims)} into {_shape(target)}, across rows")


def _shape(dims: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, dims))}]"
