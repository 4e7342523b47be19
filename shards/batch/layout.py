"""Rules for operators that give a tensor another shape, and for the shapes that they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from onnx import numpy_helper

from shards.batch.sizes import ONE, ROWS, Size, Symbol, product
from shards.batch.step import BY_NUMBER, OperatorStep, counted, no_counts, only_values, rows_apart
from shards.batch.values import (
    Dims,
    Number,
    Rows,
    RowsMayMix,
    Value,
    broadcast,
    made,
    numbers,
    reshaped,
    with_rows,
    without_rows,
)

_TO_THE_END = 2**31 - 1  # the least of the ends that exporters write for "all"
_FEW = 64  # formulas that are followed one by one
_ZERO = Size.of(0)


def shape(step: OperatorStep) -> list[Value]:
    """The sizes of a tensor: they are known as formulas, whatever the tensor holds."""
    dims = step.value(0).known
    begin, end = step.attribute("start", 0), step.attribute("end", len(dims))
    return [_vector(dims[slice(*slice(begin, end).indices(len(dims)))])]


def size(step: OperatorStep) -> list[Value]:
    """The number of elements."""
    return [Value((), None, (product(step.value(0).known),))]


def reshape(step: OperatorStep) -> list[Value]:
    """Other sizes for as many elements: 0 keeps a size, one -1 is what the others leave."""
    value = step.value(0)
    stored = step.attribute("shape")
    wanted = [Size.of(int(n)) for n in stored] if stored else list(step.sizes(1, "shape"))
    target: list[Size] = []
    hole: int | None = None
    for axis, each in enumerate(wanted):
        if each.number == 0 and not step.attribute("allowzero", 0):
            target.append(value.known[counted(axis, value.rank)])
        elif each.number == -1:
            hole = axis
            target.append(ONE)
        elif each.positive or each.number == 0:
            target.append(each)
        else:
            raise RowsMayMix(f"its shape has {each}, which may be 0 or -1")
    if hole is not None:
        left = product(value.known).over(product(target))
        if left is None:
            raise RowsMayMix(
                f"it makes rows of {product(target)} elements out of {product(value.known)}"
            )
        target[hole] = left
    return [_kept(value, target) or reshaped(value, target)]


def flatten(step: OperatorStep) -> list[Value]:
    """Two axes: those before `axis`, and the others."""
    dims = step.value(0).known
    axis = int(step.attribute("axis", 1))
    axis += len(dims) if axis < 0 else 0
    return [reshaped(step.value(0), (product(dims[:axis]), product(dims[axis:])))]


def squeeze(step: OperatorStep) -> list[Value]:
    """Without axes of size 1."""
    value = step.value(0)
    axes = step.numbers(1, "axes", "axes")
    if axes is None:
        if any(each.number is None for each in value.known):
            raise RowsMayMix(
                "it takes away each axis of size 1, and which these are only a run knows"
            )
        axes = tuple(axis for axis, each in enumerate(value.known) if each == ONE)
    gone = {counted(axis, value.rank) for axis in axes}
    if value.rows is not None and value.rows.axis in gone:
        raise RowsMayMix("it takes away the axis along which the rows of a batch lie")
    dims = [each for axis, each in enumerate(value.known) if axis not in gone]
    return [_kept(value, dims) or _moved(value, dims, lambda a: a - sum(g < a for g in gone))]


def unsqueeze(step: OperatorStep) -> list[Value]:
    """With more axes, of size 1."""
    value = step.value(0)
    axes = step.numbers(1, "axes", "axes") or ()
    rank = value.rank + len(axes)
    new = {counted(axis, rank) for axis in axes}
    old = [axis for axis in range(rank) if axis not in new]
    dims = [ONE] * rank
    for axis, each in zip(old, value.known, strict=True):
        dims[axis] = each
    return [_kept(value, dims) or _moved(value, dims, lambda a: old[a])]


def transpose(step: OperatorStep) -> list[Value]:
    """The axes in another order."""
    value = step.value(0)
    order = step.attribute("perm") or list(range(value.rank))[::-1]
    if (grid := value.grid) is not None:
        return [numbers(grid.transpose(order))]
    return [_moved(value, [value.known[axis] for axis in order], lambda a: list(order).index(a))]


def concat(step: OperatorStep) -> list[Value]:
    """Tensors one behind the other, along an axis that has no rows."""
    values = step.given()
    rank = values[0].rank
    axis = step.axis(rank)
    if rank == 1 and any(value.elements is not None for value in values):
        every = [step.sizes(i, "input") for i in range(len(values))]
        return [_vector([each for elements in every for each in elements])]
    no_counts(values)
    rows = _rows_of_all(values, axis)
    dims = list(values[0].known)
    for value in values[1:]:
        for at, each in enumerate(value.known):
            dims[at] = dims[at] + each if at == axis else _either(dims[at], each)
    if rows is not None and any(v.rows is not None and v.rows.number for v in values):
        # Indices into a batch: the number of the row, then places inside of it.
        first = values[0]
        leads = first.rows is not None and first.rows.number == Number()
        if not (leads and axis == rank - 1 and first.known[axis] == ONE):
            raise RowsMayMix(BY_NUMBER)
        rows = replace(rows, number=Number(first=True))
    return [made(dims, rows)]


def split(step: OperatorStep) -> list[Value]:
    """Parts of a tensor, along an axis that has no rows."""
    value = step.value(0)
    axis = step.axis(value.rank, 0)
    rows = rows_apart(value, [axis], "splits")
    count = len(step.node.output)
    parts = step.numbers(1, "split", "split")
    if parts is None:
        whole = value.known[axis].number
        if whole is None:
            sizes = [step.size(axis, i) for i in range(count)]
        else:
            each = -(-whole // count)
            sizes = [Size.of(min(each, whole - i * each)) for i in range(count)]
    else:
        sizes = [Size.of(part) for part in parts]
    if (grid := value.grid) is not None and all(each.number is not None for each in sizes):
        ends = np.cumsum([each.number for each in sizes])
        return [numbers(part) for part in np.split(grid, ends[:-1], axis)]
    no_counts([value])
    return [made(_with(value.known, axis, each), rows) for each in sizes]


def slices(step: OperatorStep) -> list[Value]:
    """A part of each of some axes. Along the rows only all of them, in order, are no mixture."""
    value = step.value(0)
    starts, ends = (_bounds(step, i, name) for i, name in ((1, "starts"), (2, "ends")))
    axes = step.numbers(3, "axes", "axes") or tuple(range(len(starts)))
    steps = step.numbers(4, "steps") or (1,) * len(axes)
    dims, grid = list(value.known), value.grid
    for axis, start, end, stride in zip(axes, starts, ends, steps, strict=True):
        at = counted(axis, value.rank)
        if stride == 1 and start == _ZERO and _is_end(end, dims[at]):
            continue
        if start.counts_rows or end.counts_rows:
            raise RowsMayMix("its bounds depend on the number of rows")
        if value.rows is not None and value.rows.axis == at:
            raise RowsMayMix(f"it takes a part of axis {at}, along which the rows of a batch lie")
        whole = dims[at].number
        if whole is not None and start.number is not None and end.number is not None:
            taken = range(whole)[slice(start.number, end.number, stride)]
            dims[at] = Size.of(len(taken))
            grid = None if grid is None else np.take(grid, taken, at)
        else:
            grid = None
            dims[at] = _sliced(step, at, start, end, dims[at]) if stride == 1 else step.size(at)
    if grid is not None:
        return [numbers(grid)]
    no_counts([value])
    rows = only_values(value)
    return [made(dims, rows, value.below)]


def expand(step: OperatorStep) -> list[Value]:
    """A tensor repeated along axes of size 1. Repeated for each row, it has rows that are equal."""
    value, target = step.value(0), step.sizes(1, "shape")
    rank = max(value.rank, len(target))
    grid, shape = value.grid, [each.number for each in target]
    if grid is not None and None not in shape and math.prod(n or 0 for n in shape) <= _FEW:
        together = np.broadcast_shapes(grid.shape, tuple(n or 0 for n in shape))
        return [numbers(np.broadcast_to(grid, together))]
    no_counts([value])
    dims = [ONE] * (rank - value.rank) + list(value.known)
    wanted = [ONE] * (rank - len(target)) + list(target)
    rows = None if value.rows is None else value.rows.at(value.rows.axis + rank - value.rank)
    for axis, (mine, want) in enumerate(zip(dims, wanted, strict=True)):
        if rows is not None and rows.axis == axis:
            if want not in (ONE, mine):
                raise RowsMayMix(f"it repeats axis {axis}, along which the rows of a batch lie")
        elif want.counts_rows:
            inner = want.over(ROWS)
            if rows is not None or mine != ONE or inner is None:
                raise RowsMayMix(f"it makes an axis of {want} out of one of {mine}")
            rows, dims[axis] = Rows(axis, ONE, inner), want
        else:
            both = broadcast(mine, want)
            dims[axis] = step.size(axis) if both is None else both
    return [made(dims, rows, value.below)]


def tile(step: OperatorStep) -> list[Value]:
    """A tensor repeated along its axes, one whole tensor behind the other."""
    value = step.value(0)
    no_counts([value])
    dims, rows = list(value.known), value.rows
    for axis, times in enumerate(step.sizes(1, "repeats")):
        if times.counts_rows:
            each = times.over(ROWS)
            if rows is not None or each != ONE:
                raise RowsMayMix(f"it repeats axis {axis} for {times}")
            rows = Rows(axis, ONE, dims[axis])
        elif rows is not None and rows.axis == axis:
            rows = replace(rows, outer=rows.outer * times)
        dims[axis] = dims[axis] * times
    return [made(dims, rows)]


def filled(step: OperatorStep) -> list[Value]:
    """ConstantOfShape: one number everywhere."""
    dims = step.sizes(0, "shape")
    stored = step.attribute("value")
    fill = numpy_helper.to_array(stored).reshape(-1)[0] if stored is not None else np.float32(0)
    rows = _rows_within(dims)
    count = product(dims).number
    if fill.dtype.kind in "iub" and count is not None and count <= _FEW:
        return [Value(dims, None, (Size.of(int(fill)),) * count)]
    return [made(dims, rows)]


def counts_up(step: OperatorStep) -> list[Value]:
    """Range: up to the number of rows, it holds the number of each row."""
    start, limit, stride = (step.sizes(i, "bounds")[0] for i in range(3))
    if limit == ROWS and start == _ZERO and stride == ONE:
        return [with_rows([ROWS], Rows(0, number=Number()))]
    no_counts(step.given())
    count = limit - start
    if stride == ONE and start == _ZERO and limit.positive:
        return [without_rows([limit], below=limit)]
    return [without_rows([count if stride == ONE and count.positive else step.size(0)])]


def pad(step: OperatorStep) -> list[Value]:
    """More indices at the ends of axes that have no rows."""
    value = step.value(0)
    no_counts([value])
    pads = step.numbers(1, "pads", "pads") or ()
    if step.has(2):
        step.fixed(2, "padding")
    axes = step.numbers(3, "axes") or tuple(range(value.rank))
    dims = list(value.known)
    rows = only_values(value)
    for at, axis in enumerate(axes):
        added = pads[at] + pads[at + len(axes)]
        if rows is not None and counted(axis, value.rank) == rows.axis and (added or pads[at]):
            raise RowsMayMix(f"it pads axis {rows.axis}, along which the rows of a batch lie")
        dims[axis] = dims[axis] + Size.of(added)
    return [made(dims, rows)]


def _bounds(step: OperatorStep, index: int, name: str) -> tuple[Size, ...]:
    """The starts or ends of a Slice: an input, or an attribute of older versions."""
    stored = step.attribute(name)
    return tuple(Size.of(int(n)) for n in stored) if stored else step.sizes(index, name)


def _is_end(end: Size, size: Size) -> bool:
    return end == size or (end.number is not None and end.number >= _TO_THE_END)


def _sliced(step: OperatorStep, axis: int, start: Size, end: Size, size: Size) -> Size:
    """The size of a part of an axis, in steps of 1, where a bound or the size is a formula."""
    if end.number is not None and end.number < 0:
        end = size + end
    elif _is_end(end, size):
        end = size
    if start.number is not None and start.number < 0:
        if start.number == -1 and end == size:
            return ONE
        start = size + start
    most = end - start
    if end == size and start.number is not None and size.positive and most.positive:
        return most
    known = (most, size) if start == _ZERO else (most,)
    return Size.of(Symbol(f"{step.node.output[0]}.{axis}", positive=False, at_most=known))


def _vector(elements: Sequence[Size]) -> Value:
    return Value((Size.of(len(elements)),), None, tuple(elements))


def _kept(value: Value, dims: Sequence[Size]) -> Value | None:
    """The same numbers in another shape; None where nothing says which they are."""
    if value.elements is None or any(each.number is None for each in dims):
        return None
    return Value(tuple(dims), None, value.elements, value.array, below=value.below)


def _moved(value: Value, dims: Sequence[Size], where: Callable[[int], int]) -> Value:
    """The tensor with its axes elsewhere; `where` leads from an old axis to the new one."""
    no_counts([value])
    if value.rows is None:
        return without_rows(dims, value.below)
    first = value.rows.number is not None and value.rows.number.first
    if first and where(value.rank - 1) != len(dims) - 1:
        raise RowsMayMix(BY_NUMBER)
    return with_rows(dims, value.rows.at(where(value.rows.axis)), value.below)


def _rows_of_all(values: Sequence[Value], axis: int) -> Rows | None:
    """Where the rows of tensors lie that are put together along `axis`. Raises RowsMayMix."""
    with_them = [value.rows for value in values if value.rows is not None]
    if not with_them:
        return None
    first = with_them[0].plain()
    if first.axis == axis:
        raise RowsMayMix(
            f"it puts tensors together along axis {axis}, where the rows of a batch lie"
        )
    if len(with_them) < len(values) or any(each.plain() != first for each in with_them):
        raise RowsMayMix("its inputs have the rows of a batch along different axes")
    return first


def _rows_within(dims: Dims) -> Rows | None:
    """The rows of a tensor that is made with an axis for them. Raises RowsMayMix."""
    for axis, each in enumerate(dims):
        if each.counts_rows:
            inner = each.over(ROWS)
            if inner is None:
                raise RowsMayMix(f"it makes an axis of {each}")
            return Rows(axis, ONE, inner)
    return None


def _either(one: Size, other: Size) -> Size:
    """Of two formulas that are equal in each run that does not fail, the one that says more."""
    if one.number is not None or (other.number is None and one.positive):
        return one
    return other


def _with(dims: Dims, axis: int, size: Size) -> Dims:
    return (*dims[:axis], size, *dims[axis + 1 :])
