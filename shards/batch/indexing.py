"""Rules for operators that pick or put elements by indices."""

from __future__ import annotations

import numpy as np

from shards.batch.sizes import ONE, Size
from shards.batch.step import OperatorStep, counted, no_counts, only_values, rows_apart
from shards.batch.values import Number, Rows, RowsMayMix, Value, made, numbers, without_rows


def gather(step: OperatorStep) -> list[Value]:
    """Parts along one axis, by indices. The rows lie in the data or in the indices, not in both."""
    data, picks = step.value(0), step.value(1)
    axis = step.axis(data.rank, 0)
    grid, places = data.grid, picks.grid
    if grid is not None and places is not None:
        chosen = [size.number for size in picks.elements or ()]
        if None not in chosen:
            return [numbers(_taken(grid, chosen, picks, axis))]
    no_counts([data, picks])
    dims = (*data.known[:axis], *picks.known, *data.known[axis + 1 :])
    if _in_own_row(data, picks, axis) and picks.rows is not None:
        return [made(dims, picks.rows.plain().at(picks.rows.axis + axis))]
    rows = rows_apart(data, [axis], "picks from")
    chooses = only_values(picks)
    if rows is not None and chooses is not None:
        raise RowsMayMix("it picks from the rows of a batch by indices that have rows too")
    if chooses is not None:
        return [made(dims, chooses.at(chooses.axis + axis))]
    if rows is not None and rows.axis > axis:
        rows = rows.at(rows.axis - 1 + picks.rank)
    return [made(dims, rows)]


def gather_elements(step: OperatorStep) -> list[Value]:
    """One element for each index, along one axis; at the other axes data and indices agree."""
    data, picks = step.value(0), step.value(1)
    no_counts([data, picks])
    axis = step.axis(data.rank, 0)
    rows, chooses = rows_apart(data, [axis], "picks from"), only_values(picks)
    shared = chooses is not None and rows is None and chooses.axis == axis
    if not shared and rows != chooses:
        raise RowsMayMix("its data and its indices have the rows of a batch along different axes")
    return [made(picks.known, chooses)]


def gather_nd(step: OperatorStep) -> list[Value]:
    """Parts by vectors of indices, of which the first may be the number of the row."""
    data, picks = step.value(0), step.value(1)
    no_counts([data, picks])
    batch = int(step.attribute("batch_dims", 0))
    depth = picks.known[-1].number
    if depth is None:
        raise RowsMayMix("the length of its indices is unknown")
    dims = (*picks.known[:-1], *data.known[batch + depth :])
    rows, chooses = only_values(data), picks.rows
    if chooses is not None and chooses.axis == picks.rank - 1:
        raise RowsMayMix("its indices go across the rows of a batch")
    if chooses is None:
        if rows is not None and rows.axis < batch + depth:
            raise RowsMayMix(f"it picks from axis {rows.axis}, along which the rows of a batch lie")
        return [made(dims, rows and rows.at(rows.axis - batch - depth + picks.rank - 1))]
    if rows is None:
        only_values(picks)
        if chooses.axis < batch:
            raise RowsMayMix("its indices have rows, and its data has none")
        return [made(dims, chooses)]
    if rows.axis < batch and rows == only_values(picks):
        return [made(dims, chooses)]
    if _own_row(rows, chooses) and batch == 0:
        return [made(dims, chooses.plain())]
    raise RowsMayMix("its data and its indices have the rows of a batch along different axes")


def scatter_elements(step: OperatorStep) -> list[Value]:
    """Elements put at indices, along one axis; all three inputs have the rows alike."""
    values = step.given()
    no_counts(values)
    data = values[0]
    axis = step.axis(data.rank, 0)
    rows = rows_apart(data, [axis], "puts along")
    if any(only_values(value) != rows for value in values[1:]):
        raise RowsMayMix("its inputs have the rows of a batch along different axes")
    return [made(data.known, rows)]


def scatter_nd(step: OperatorStep) -> list[Value]:
    """Parts put at vectors of indices, of which the first is the number of the row."""
    data, places, parts = step.value(0), step.value(1), step.value(2)
    no_counts([data, places, parts])
    rows = only_values(data)
    if rows is not None:
        where = places.rows
        own = where is not None and _own_row(rows, where) and only_values(parts) == where.plain()
        if not own or places.rank < 2:
            raise RowsMayMix("it puts parts into the rows of a batch, perhaps into another's")
    elif not (places.same and parts.same):
        raise RowsMayMix("it puts the rows of a batch into one tensor")
    return [made(data.known, rows)]


def one_hot(step: OperatorStep) -> list[Value]:
    """A one at each index, along a new axis."""
    picks = step.value(0)
    no_counts([picks])
    step.fixed(1, "depth")
    step.fixed(2, "values")
    axis = step.axis(picks.rank + 1, -1)
    depth = step.sizes(1, "depth")[0]
    dims = (*picks.known[:axis], depth, *picks.known[axis:])
    rows = only_values(picks)
    if rows is not None and rows.axis >= axis:
        rows = rows.at(rows.axis + 1)
    return [made(dims, rows)]


def triangle(step: OperatorStep) -> list[Value]:
    """Trilu: of each matrix in the last two axes."""
    value = step.value(0)
    no_counts([value])
    if step.has(1):
        step.fixed(1, "diagonal")
    rows = rows_apart(value, [value.rank - 2, value.rank - 1], "cuts through")
    return [made(value.known, rows)]


def compressed(step: OperatorStep) -> list[Value]:
    """Compress: the indices of one axis where a stored condition holds."""
    value = step.value(0)
    no_counts([value])
    step.fixed(1, "condition")
    axis = step.axis(value.rank)
    rows = rows_apart(value, [axis], "picks from")
    dims = (*value.known[:axis], step.size(axis), *value.known[axis + 1 :])
    return [made(dims, rows)]


def boxes(step: OperatorStep) -> list[Value]:
    """NonMaxSuppression and its kind: how much they find depends on the data of all rows."""
    if all(value.same for value in step.given()):
        return [without_rows(None)] * len(step.node.output)
    raise RowsMayMix("how much it finds depends on the data of the whole batch")


def _taken(grid: np.ndarray, chosen: list[int | None], picks: Value, axis: int) -> np.ndarray:
    """Formulas picked by stored indices. Raises RowsMayMix for an index that is not there."""
    places = np.array([counted(n or 0, grid.shape[axis]) for n in chosen], np.int64)
    return np.take(grid, places.reshape([size.number or 0 for size in picks.known]), axis)


def _in_own_row(data: Value, picks: Value, axis: int) -> bool:
    """Whether each row picks from itself, in an axis where the rows lie one behind the other."""
    rows, places = data.rows, picks.rows
    if rows is None or places is None or places.number is None or places.number.first:
        return False
    number, behind = places.number, rows.number is None and rows.axis == axis and rows.outer == ONE
    return behind and number.stride == rows.inner and _at_most(number.below, rows.inner)


def _at_most(one: Size, other: Size) -> bool:
    """Whether a bound is known to be no more than another one."""
    return one == other or (other - one).positive


def _own_row(rows: Rows, chooses: Rows) -> bool:
    """Whether vectors of indices begin with the number of their row, and axis 0 has the rows."""
    return chooses.number == Number(first=True) and rows == Rows(0)
