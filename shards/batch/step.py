"""One operator of a graph as a rule sees it: its inputs' values, its attributes, its version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from shards.batch.sizes import ONE, Size, Symbol
from shards.batch.values import Rows, RowsMayMix, Value, broadcast, made

BY_NUMBER = "it computes with the number that a row has in its batch"

Rule = Callable[["OperatorStep"], Sequence[Value]]
"""From an operator's inputs to its outputs. Raises RowsMayMix where it may mix the rows of a
batch."""


@dataclass(frozen=True)
class OperatorStep:
    """A node, the version of its operator set, and its inputs, None for one that is left out."""

    node: NodeProto
    opset: int
    inputs: tuple[Value | None, ...]

    @property
    def op(self) -> str:
        """The operator."""
        return str(self.node.op_type)

    def doubt(self, why: str) -> str:
        """A sentence that names the operator."""
        return f"{self.op} {self.node.name or self.node.output[0]!r}: {why}"

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default."""
        for each in self.node.attribute:
            if each.name == name:
                return helper.get_attribute_value(each)
        return default

    def has(self, index: int) -> bool:
        """Whether the input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """An input. Raises RowsMayMix where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise RowsMayMix(f"it has no input {index}")
        return value

    def given(self) -> list[Value]:
        """All inputs that are given."""
        return [value for value in self.inputs if value is not None]

    def size(self, axis: int, output: int = 0) -> Size:
        """A formula for the size of an axis of an output of which nothing is known."""
        return Size.of(Symbol(f"{self.node.output[output]}.{axis}"))

    def fixed(self, index: int, what: str) -> Value:
        """An input that is the same in every run. Raises RowsMayMix."""
        value = self.value(index)
        if not value.same:
            raise RowsMayMix(f"its {what} depends on the batch")
        return value

    def sizes(self, index: int, what: str) -> tuple[Size, ...]:
        """The formulas of an input that holds sizes. What is not known becomes a symbol, of which
        even the sign is unknown. Raises RowsMayMix for one that depends on data."""
        value = self.value(index)
        if value.elements is not None:
            return value.elements
        if value.rows is not None:
            raise RowsMayMix(f"its {what} depends on data")
        if value.mixed or value.rank > 1 or (value.rank and value.known[0].number is None):
            raise RowsMayMix(f"its {what} is unknown")
        count = value.known[0].number if value.rank else 1
        name = self.node.input[index]
        return tuple(Size.of(Symbol(f"{name}[{i}]", positive=False)) for i in range(count or 0))

    def numbers(self, index: int, what: str, attribute: str = "") -> tuple[int, ...] | None:
        """Integers that an input stores, or an attribute of older versions; None where neither is
        there. Raises RowsMayMix where a run makes them."""
        if not self.has(index):
            stored = self.attribute(attribute) if attribute else None
            return None if stored is None else tuple(int(number) for number in stored)
        found = [size.number for size in self.sizes(index, what)]
        if any(number is None for number in found):
            raise RowsMayMix(f"its {what} is not stored in the model")
        return tuple(number for number in found if number is not None)

    def floats(self, index: int) -> np.ndarray | None:
        """Numbers that an input stores; None where it is left out or empty. Raises RowsMayMix where
        a run makes them."""
        if not self.has(index):
            return None
        value = self.value(index)
        if value.dims == (Size.of(0),):
            return None
        if value.array is None:
            raise RowsMayMix("its scales are not stored in the model")
        return value.array

    def axis(self, rank: int, default: int | None = None, attribute: str = "axis") -> int:
        """The attribute that names an axis, counted from the start. Raises RowsMayMix."""
        axis = self.attribute(attribute, default)
        if axis is None:
            raise RowsMayMix("it runs over all axes")
        return counted(int(axis), rank)


def counted(axis: int, rank: int) -> int:
    """An axis, counted from the start. Raises RowsMayMix where there is no such axis."""
    if not -rank <= axis < rank:
        raise RowsMayMix(f"there is no axis {axis}")
    return axis % rank


def rows_apart(value: Value, axes: Sequence[int], does: str) -> Rows | None:
    """The rows of a tensor of which an operator works along `axes`. Raises RowsMayMix where the
    rows lie there, or are no values."""
    if value.rows is None:
        return None
    if value.rows.axis in axes:
        raise RowsMayMix(f"it {does} axis {value.rows.axis}, along which the rows of a batch lie")
    return only_values(value)


def only_values(value: Value) -> Rows | None:
    """The rows of a tensor. Raises RowsMayMix where it holds the rows' own numbers."""
    if value.rows is not None and value.rows.number is not None:
        raise RowsMayMix(BY_NUMBER)
    return value.rows


def no_counts(values: Sequence[Value]) -> None:
    """Raise RowsMayMix where one of the tensors holds the number of rows."""
    if any(value.counts_rows for value in values):
        raise RowsMayMix("it computes with the number of rows in the batch")


def spread(step: OperatorStep, values: Sequence[Value], output: int = 0) -> Value:
    """What broadcasting makes of tensors, element by element. Raises RowsMayMix.

    Of numbers of rows it makes nothing that is known, but for its sizes.
    """
    no_counts(values)
    rank = max((value.rank for value in values), default=0)
    rows: Rows | None = None
    by_number = any(value.rows is not None and value.rows.number for value in values)
    for value in values:
        if value.rows is None:
            continue
        mine = value.rows.plain().at(value.rows.axis + rank - value.rank)
        if rows is not None and rows != mine:
            raise RowsMayMix("its inputs have the rows of a batch along different axes")
        rows = mine
    dims = []
    for axis in range(rank):
        at = [(v, v.known[axis - rank + v.rank]) for v in values if axis - rank + v.rank >= 0]
        if rows is not None and rows.axis == axis:
            if any(value.rows is None and size != ONE for value, size in at):
                raise RowsMayMix(
                    f"it meets the rows of a batch, along axis {axis}, with something else"
                )
            dims.append(rows.size)
            continue
        total: Size | None = ONE
        for _, size in at:
            total = None if total is None else broadcast(total, size)
        dims.append(step.size(axis, output) if total is None else total)
    if by_number:
        return Value(tuple(dims), mixed=step.doubt(BY_NUMBER))
    return made(dims, rows)
