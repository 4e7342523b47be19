"""Formulas of sizes compute as the numbers that they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from shards.batch.sizes import BATCH, ONE, ROWS, Size, Symbol

SYMBOLS = (BATCH, Symbol("s"), Symbol("t"), Symbol("u", positive=False))
runs = st.fixed_dictionaries({symbol: st.integers(1, 9) for symbol in SYMBOLS})
atoms = st.one_of(st.integers(-3, 6), st.sampled_from(SYMBOLS)).map(Size.of)
sizes = st.recursive(
    atoms,
    lambda smaller: st.tuples(st.sampled_from(["+", "-", "*"]), smaller, smaller).map(
        lambda each: {"+": Size.__add__, "-": Size.__sub__, "*": Size.__mul__}[each[0]](*each[1:])
    ),
    max_leaves=6,
)


def computed(size: Size, run: Mapping[Symbol, int]) -> int:
    return sum(count * math.prod(run[symbol] for symbol in term) for term, count in size.terms)


@given(sizes, sizes, runs)
def test_sums_differences_and_products_are_those_of_the_numbers(
    one: Size, other: Size, run: dict[Symbol, int]
) -> None:
    left, right = computed(one, run), computed(other, run)
    assert computed(one + other, run) == left + right
    assert computed(one - other, run) == left - right
    assert computed(one * other, run) == left * right


@given(sizes, sizes, runs)
def test_a_quotient_is_exact_in_each_run(one: Size, other: Size, run: dict[Symbol, int]) -> None:
    quotient = one.over(other)
    if quotient is not None:
        assert quotient * other == one
        assert computed(quotient, run) * computed(other, run) == computed(one, run)


@given(sizes, sizes)
def test_a_product_divided_by_a_factor_is_the_other_factor(one: Size, other: Size) -> None:
    if other != Size.of(0):
        assert (one * other).over(other) == one


@given(sizes, runs)
def test_what_is_said_to_be_positive_is_so_in_each_run(size: Size, run: dict[Symbol, int]) -> None:
    if size.positive:
        assert computed(size, run) >= 1


def test_a_formula_says_what_it_is() -> None:
    heads = Size.of(12) * ROWS
    assert str(heads) == "12·batch size"
    assert (heads.number, heads.symbol, ROWS.symbol, ONE.number) == (None, None, BATCH, 1)
    assert heads.counts_rows
    assert not Size.of(Symbol("s")).counts_rows
    assert Size.of(Symbol("end", at_most=(ROWS,))).counts_rows
    assert ROWS.over(Size.of(2)) is None
    assert Size.of(7).over(Size.of(2)) is None
    assert ONE.over(Size.of(0)) is None
