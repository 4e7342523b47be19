"""Rules for products of matrices, and for attention as one operator."""

from __future__ import annotations

from shards.batch.sizes import ONE, Size
from shards.batch.step import OperatorStep, no_counts, only_values, rows_apart, spread
from shards.batch.values import Rows, RowsMayMix, Value, made, with_rows, without_rows


def matmul(step: OperatorStep) -> list[Value]:
    """[…, i, k] · […, k, j]: rows along k would be summed."""
    return [_product(step, step.value(0), step.value(1))]


def integer_matmul(step: OperatorStep) -> list[Value]:
    """A product of integers, with zero points that all rows share."""
    second, of_rows = (3, (1, 2)) if step.op == "QLinearMatMul" else (1, (2,))
    for index in range(1, len(step.inputs)):
        if step.has(index) and index != second:
            point = step.fixed(index, "scale or zero point")
            if index in of_rows and point.rank and point.known[0].number != 1:
                raise RowsMayMix("it has another scale or zero point for each row")
    return [_product(step, step.value(0), step.value(second))]


def gemm(step: OperatorStep) -> list[Value]:
    """A product of two matrices, either turned perhaps, and a bias."""
    one, other = (
        _turned(step.value(i)) if step.attribute(name, 0) else step.value(i)
        for i, name in ((0, "transA"), (1, "transB"))
    )
    product = _product(step, one, other)
    if not step.has(2):
        return [product]
    bias = step.value(2)
    if bias.rank > 2:
        raise RowsMayMix("its bias has more than two axes")
    return [spread(step, [product, bias])]


def weighted(step: OperatorStep) -> list[Value]:
    """MatMulNBits: a product with stored weights of a few bits, along the last axis."""
    value = step.value(0)
    no_counts([value])
    rows = rows_apart(value, [value.rank - 1], "sums along")
    for index in range(1, len(step.inputs)):
        if step.has(index):
            step.fixed(index, "weights")
    return [made([*value.known[:-1], Size.of(int(step.attribute("N")))], rows)]


def einsum(step: OperatorStep) -> list[Value]:
    """Sums of products by letters: the letter of the rows stays."""
    equation = bytes(step.attribute("equation")).decode().replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    if not arrow or "." in equation:
        raise RowsMayMix("its equation is not written in full")
    values = step.given()
    no_counts(values)
    found: dict[str, Rows] = {}
    sizes: dict[str, Size] = {}
    for letters, value in zip(inputs.split(","), values, strict=True):
        rows = only_values(value)
        if rows is not None:
            found[letters[rows.axis]] = rows
            if letters.count(letters[rows.axis]) > 1:
                raise RowsMayMix("it takes a diagonal across rows")
        for letter, size in zip(letters, value.known, strict=True):
            if sizes.get(letter, ONE).number is None or letter not in sizes or sizes[letter] == ONE:
                sizes[letter] = size
    if not found:
        return [without_rows([sizes[letter] for letter in output])]
    if len(found) > 1:
        raise RowsMayMix("its inputs have the rows of a batch along different axes")
    [(letter, rows)] = found.items()
    for letters, value in zip(inputs.split(","), values, strict=True):
        if letter in letters and (value.rows is None or not value.rows.beside(rows)):
            raise RowsMayMix("it meets the rows of a batch with something else")
    if output.count(letter) != 1:
        raise RowsMayMix("it sums over the rows of a batch")
    sizes[letter] = rows.size
    return [with_rows([sizes[each] for each in output], rows.at(output.index(letter)))]


def attention(step: OperatorStep) -> list[Value]:
    """Attention (version 23): axis 0 of queries, keys, values and states counts sequences."""
    query = step.value(0)
    rows = only_values(query)
    for index, value in enumerate(step.inputs):
        if value is None:
            continue
        no_counts([value])
        shared = index == 3 and value.rows is None and (value.rank < 4 or value.known[0] == ONE)
        if not shared and (only_values(value) != rows or (rows is not None and rows.axis)):
            raise RowsMayMix("its inputs have the rows of a batch along different axes")
    outputs = []
    for index in range(len(step.node.output)):
        rank = query.rank if index == 0 else 4
        dims = [step.size(axis, index) for axis in range(rank)]
        if index == 0 and step.value(1).known == step.value(2).known and rank == 3:
            dims = list(query.known)
        dims[:2] = query.known[:2] if index == 0 else [query.known[0], dims[1]]
        outputs.append(made(dims, rows))
    return outputs


def _product(step: OperatorStep, one: Value, other: Value) -> Value:
    """A product as MatMul defines it. Raises RowsMayMix."""
    no_counts([one, other])
    if 0 in (one.rank, other.rank):
        raise RowsMayMix("one of its inputs is a scalar")
    first, second = only_values(one), only_values(other)
    if first is not None and first.axis == one.rank - 1:
        raise RowsMayMix(
            f"it sums along axis {first.axis} of its input, where the rows of a batch lie"
        )
    if second is not None and second.axis == max(0, other.rank - 2):
        raise RowsMayMix(
            f"it sums along axis {second.axis} of its input, where the rows of a batch lie"
        )
    # As […, i, 1] and […, 1, j] the two broadcast to the product's shape.
    left = one.known[:-1] if one.rank > 1 else (ONE,)
    right = (*other.known[:-2], ONE, other.known[-1]) if other.rank > 1 else (ONE, ONE)
    both = spread(step, [Value((*left, ONE), first), Value(right, second)])
    dims, rows = list(both.known), both.rows
    for axis, gone in ((len(dims) - 1, other.rank == 1), (len(dims) - 2, one.rank == 1)):
        if gone:
            del dims[axis]
            if rows is not None and rows.axis > axis:
                rows = rows.at(rows.axis - 1)
    return made(dims, rows)


def _turned(value: Value) -> Value:
    """A matrix with its axes changed."""
    if value.rank != 2:
        raise RowsMayMix("its input is no matrix")
    rows = None if value.rows is None else value.rows.at(1 - value.rows.axis)
    return Value(value.known[::-1], rows, None, None, value.mixed)
