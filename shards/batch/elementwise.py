"""Rules for operators that compute each element by itself, and for the arithmetic of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from shards.batch.sizes import ONE, Size, Symbol
from shards.batch.step import OperatorStep, no_counts, only_values, spread
from shards.batch.values import RowsMayMix, Value, made, numbers

# Types that hold each size and each index.
_WIDE = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.UINT64, TensorProto.UINT32})


def elementwise(step: OperatorStep) -> list[Value]:
    """Each element by the elements of the inputs at its place."""
    values = step.given()
    found = _arithmetic(step, values) or _place_in_batch(step, values)
    return [found] if found is not None else [spread(step, values)] * len(step.node.output)


def unchanged(step: OperatorStep) -> list[Value]:
    """The first input again, as another type perhaps; the others are settings."""
    value = step.value(0)
    no_counts(step.given()[1:])
    if step.op != "Cast" or step.attribute("to") in _WIDE:
        return [value]
    known = [size.number for size in value.elements or () if size.number is not None]
    if (
        step.attribute("to") == TensorProto.BOOL
        and known
        and len(known) == len(value.elements or ())
    ):
        truth = tuple(Size.of(int(number != 0)) for number in known)
        return [replace(value, elements=truth, array=None, below=Size.of(2))]
    no_counts([value])
    return [made(value.known, only_values(value))]


def dropout(step: OperatorStep) -> list[Value]:
    """Nothing, where it is not in training: its switch is then left out, or a stored False."""
    if step.opset >= 12 and step.has(2):
        flag = step.value(2)
        if flag.elements is None or flag.elements[0].number != 0:
            raise RowsMayMix("it draws random numbers")
    value = step.value(0)
    return [value, made(value.known, value.rows)]


def scaled(step: OperatorStep) -> list[Value]:
    """QuantizeLinear and DequantizeLinear: scales are one number, or one for each index of an axis
    along which no rows lie."""
    value = step.value(0)
    rows = only_values(value)
    no_counts([value])
    for index in (1, 2):
        if not step.has(index):
            continue
        scale = step.fixed(index, "scale")
        if scale.rank > 1:
            raise RowsMayMix("it has scales for blocks")
        if rows is not None and scale.rank == 1 and scale.known[0].number != 1:
            axis = step.axis(value.rank, 1)
            if axis == rows.axis:
                raise RowsMayMix("it has another scale for each row")
    return [made(value.known, rows)]


def draws(step: OperatorStep) -> list[Value]:
    """Random numbers: no run gives the answers of another one."""
    raise RowsMayMix("it draws random numbers")


def scales_whole(step: OperatorStep) -> list[Value]:
    """DynamicQuantizeLinear and its kind: one scale for all rows of a run."""
    raise RowsMayMix("its scale is that of the whole tensor, all rows of a batch together")


def _arithmetic(step: OperatorStep, values: Sequence[Value]) -> Value | None:
    """The formulas of small integer tensors; None where only a run knows the result."""
    compute = _ARITHMETIC.get(step.op)
    grids = [value.grid for value in values]
    if compute is None or any(grid is None for grid in grids):
        return None
    try:
        spread_out = np.broadcast_arrays(*(grid for grid in grids if grid is not None))
    except ValueError:
        return None
    made = np.empty(spread_out[0].shape, object)
    for place in np.ndindex(made.shape):
        column: list[Size] = [grid[place] for grid in spread_out]  # type: ignore[misc]
        made[place] = compute(column)
        if made[place] is None:
            return None
    return numbers(made)


def _place_in_batch(step: OperatorStep, values: Sequence[Value]) -> Value | None:
    """The indices row · stride + i into a batch whose rows lie one behind the other, or of both
    halves of that sum; None for anything else."""
    if step.op not in ("Add", "Mul") or len(values) != 2:
        return None
    numbered = [v for v in values if v.rows is not None and v.rows.number is not None]
    if len(numbered) != 1:
        return None
    [one] = numbered
    other = values[1] if values[0] is one else values[0]
    number = one.rows.number if one.rows is not None else None
    if one.rows is None or number is None or number.first or other.counts_rows:
        return None
    if step.op == "Mul":
        factor = other.elements[0] if other.elements and len(other.elements) == 1 else None
        if factor is None or not factor.positive or number.below != ONE:
            return None
        number = replace(number, stride=number.stride * factor)
    elif other.below is not None:
        number = replace(number, below=number.below + other.below - ONE)
    else:
        return None
    plain = spread(step, [replace(one, rows=one.rows.plain()), other])
    assert plain.rows is not None
    return replace(plain, rows=replace(plain.rows, number=number))


def _fold(combine: Callable[[Size, Size], Size | None]) -> Callable[[list[Size]], Size | None]:
    def folded(column: list[Size]) -> Size | None:
        total: Size | None = column[0]
        for size in column[1:]:
            total = None if total is None else combine(total, size)
        return total

    return folded


def _divided(one: Size, other: Size) -> Size | None:
    exact = one.over(other)
    if exact is not None:
        return exact
    if one.number is not None and other.number:
        quotient = abs(one.number) // abs(other.number)
        return Size.of(quotient if (one.number < 0) == (other.number < 0) else -quotient)
    if one.counts_rows or other.counts_rows:
        return None
    return Size.of(Symbol(f"({one})/({other})", positive=False))


def _remainder(one: Size, other: Size) -> Size | None:
    if one.number is not None and other.number:
        return Size.of(one.number % other.number)
    return Size.of(0) if one.over(other) is not None else None


def _larger(one: Size, other: Size) -> Size | None:
    return one if _at_least(one, other) else other if _at_least(other, one) else None


def _smaller(one: Size, other: Size) -> Size | None:
    return other if _at_least(one, other) else one if _at_least(other, one) else None


def _at_least(one: Size, other: Size) -> bool:
    """Whether one is known to be the other or more, where the symbols in it are no less than 1."""
    apart = one - other
    if not all(symbol.positive for symbol in apart.symbols):
        return not apart.terms
    least = sum(count for _, count in apart.terms)
    return least >= 0 and all(count > 0 for term, count in apart.terms if term)


def _truth(known: bool, refuted: bool) -> Size | None:
    return Size.of(1) if known else Size.of(0) if refuted else None


def _equal(one: Size, other: Size) -> Size | None:
    apart = _less(one, other) == Size.of(1) or _less(other, one) == Size.of(1)
    return _truth(one == other, apart)


def _less(one: Size, other: Size) -> Size | None:
    return _truth(_at_least(other, one + Size.of(1)), _at_least(one, other))


def _not(column: list[Size]) -> Size | None:
    [number] = [size.number for size in column]
    return None if number is None else Size.of(int(not number))


def _where(column: list[Size]) -> Size | None:
    condition, one, other = column
    if one == other:
        return one
    return None if condition.number is None else one if condition.number else other


def _negated(size: Size | None) -> Size | None:
    return None if size is None else _not([size])


_ARITHMETIC: dict[str, Callable[[list[Size]], Size | None]] = {
    "Add": _fold(Size.__add__),
    "Sum": _fold(Size.__add__),
    "Sub": _fold(Size.__sub__),
    "Mul": _fold(Size.__mul__),
    "Div": _fold(_divided),
    "Mod": _fold(_remainder),
    "Max": _fold(_larger),
    "Min": _fold(_smaller),
    "Neg": lambda column: Size.of(-1) * column[0],
    "Abs": lambda column: column[0] if _at_least(column[0], Size.of(0)) else None,
    "Equal": _fold(_equal),
    "Less": _fold(_less),
    "Greater": lambda column: _less(column[1], column[0]),
    "LessOrEqual": lambda column: _negated(_less(column[1], column[0])),
    "GreaterOrEqual": lambda column: _negated(_less(column[0], column[1])),
    "Not": _not,
    "Where": _where,
}
