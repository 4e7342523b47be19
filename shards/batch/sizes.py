"""The size of an axis as a formula: a polynomial of the number of rows and of the inputs' sizes.

Exporters compute shapes inside a graph (Shape, Gather, Mul, Concat, Reshape). Whether the rows of a
batch stay apart in a Reshape shows only where each size is known as a formula, not as a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A size that only a run knows.

    `positive` says that it is never 0 or negative. `at_most` are formulas that bound it: it is one
    of them unless a Slice ended early.
    """

    name: str
    positive: bool = True
    at_most: tuple[Size, ...] = ()


# The number of rows of a run: the size of axis 0 of each model input.
BATCH = Symbol("batch size")
_Term = tuple[Symbol, ...]


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A polynomial with integer coefficients, in normal form: equal formulas are equal objects."""

    terms: tuple[tuple[_Term, int], ...]

    @classmethod
    def of(cls, value: int | Symbol) -> Size:
        """A number, or a symbol alone."""
        return _normal({(): value} if isinstance(value, int) else {(value,): 1})

    @property
    def number(self) -> int | None:
        """The number that this is; None where it depends on a run."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def symbol(self) -> Symbol | None:
        """The symbol that this is alone; None for any other formula."""
        if len(self.terms) != 1:
            return None
        [(term, count)] = self.terms
        return term[0] if len(term) == 1 and count == 1 else None

    @property
    def symbols(self) -> frozenset[Symbol]:
        """All symbols in it."""
        return frozenset(symbol for term, _ in self.terms for symbol in term)

    @property
    def counts_rows(self) -> bool:
        """Whether it depends on how many rows a run has."""
        return any(
            symbol == BATCH or any(bound.counts_rows for bound in symbol.at_most)
            for symbol in self.symbols
        )

    @property
    def positive(self) -> bool:
        """Whether it is 1 or more in every run; False where that is not known."""
        return bool(self.terms) and all(
            count > 0 and all(symbol.positive for symbol in term) for term, count in self.terms
        )

    def __add__(self, other: Size) -> Size:
        total = dict(self.terms)
        for term, count in other.terms:
            total[term] = total.get(term, 0) + count
        return _normal(total)

    def __sub__(self, other: Size) -> Size:
        return self + other * Size.of(-1)

    def __mul__(self, other: Size) -> Size:
        total: dict[_Term, int] = {}
        for mine, count in self.terms:
            for theirs, times in other.terms:
                term = tuple(sorted((*mine, *theirs)))
                total[term] = total.get(term, 0) + count * times
        return _normal(total)

    def over(self, other: Size) -> Size | None:
        """The quotient where the division leaves nothing in any run; else None.

        `other` is taken to be no 0 in a run.
        """
        rest, quotient = self, Size(())
        if not other.terms:
            return None
        term, count = other.terms[-1]
        while rest.terms:
            highest, times = rest.terms[-1]
            left = _without(highest, term)
            if left is None or times % count:
                return None
            part = _normal({left: times // count})
            quotient, rest = quotient + part, rest - part * other
            if len(rest.terms) > 64:  # a division that leaves nothing never grows so long
                return None
        return quotient

    def __str__(self) -> str:
        parts = []
        for term, count in reversed(self.terms):
            names = "·".join(symbol.name for symbol in term)
            parts.append(names if names and count == 1 else f"{count}{'·' if names else ''}{names}")
        return " + ".join(parts) or "0"


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes; 1 for none."""
    return math.prod(sizes, start=Size.of(1))


def _normal(terms: Mapping[_Term, int]) -> Size:
    """Terms in one order, by degree and then by symbols, without those that are 0."""
    kept = ((term, count) for term, count in terms.items() if count)
    return Size(tuple(sorted(kept, key=lambda each: (len(each[0]), each[0]))))


def _without(term: _Term, part: _Term) -> _Term | None:
    """The term divided by a part of it; None where it is no part."""
    left = list(term)
    for symbol in part:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


ONE = Size.of(1)
ROWS = Size.of(BATCH)
