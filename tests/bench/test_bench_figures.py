"""Figures, sizes and growth laws: the arithmetic behind every benchmark's result."""

from __future__ import annotations

import pytest

from bench.commands import HOP_SIZES
from bench.cost.sizes import parse_size, parse_sizes, size_text
from bench.fleets.growth_law import fit
from bench.report.figure import Figure, percentile, significant


def test_a_figure_is_the_median_of_its_rounds_with_the_extremes_beside_it() -> None:
    figure = Figure.of([3.0, 1.0, 2.0], "ms")
    assert (figure.value, figure.low, figure.high) == (2.0, 1.0, 3.0)
    assert Figure.from_doc(figure.as_doc()) == figure


def test_a_figure_of_no_rounds_and_a_damaged_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        Figure.of([])
    with pytest.raises(ValueError, match="not a figure"):
        Figure.from_doc({"value": 1.0})


def test_figures_are_rounded_to_significant_digits_not_to_decimals() -> None:
    assert significant(0.000123456) == 0.0001235
    assert significant(123456.0) == 123500.0


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("4KiB", 4096), ("4KB", 4000), ("1.5MB", 1_500_000)]
)
def test_sizes_are_read_in_decimal_and_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_size_that_is_no_multiple_of_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 4"):
        parse_sizes("4KiB,7")
    with pytest.raises(ValueError, match="no size"):
        parse_sizes("4 parsecs")


def test_a_percentile_is_a_value_that_was_observed() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.50) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values[:8], 0.99) == 100.0
    assert percentile([], 0.99) == 0.0


def test_the_default_sizes_go_from_one_kibibyte_to_eight_megabytes() -> None:
    sizes = parse_sizes(HOP_SIZES)
    assert (sizes[0], sizes[-1]) == (1024, 8_000_000)
    assert [size_text(size) for size in sizes][:2] == ["1 KiB", "4 KiB"]
    assert size_text(8_000_000) == "8 MB"


@pytest.mark.parametrize(
    ("power", "words"),
    [
        (0.0, "does not depend on nodes"),
        (0.5, "grows more slowly than nodes"),
        (1.0, "grows in proportion to nodes"),
        (2.0, "grows faster than nodes"),
        (-1.0, "falls with nodes"),
    ],
)
def test_a_power_law_is_found_and_put_into_words(power: float, words: str) -> None:
    xs = [3.0, 10.0, 100.0]
    law = fit(xs, [5.0 * x**power for x in xs])
    assert law is not None
    assert law.exponent == pytest.approx(power, abs=1e-9)
    assert law.error == pytest.approx(1.0)
    assert words in law.words("memory", "nodes")


def test_what_one_more_costs_is_the_slope_of_a_line() -> None:
    law = fit([1.0, 2.0, 10.0], [12.0, 14.0, 30.0])
    assert law is not None
    assert (law.each, law.start) == (pytest.approx(2.0), pytest.approx(10.0))


def test_one_point_or_a_zero_has_no_law() -> None:
    assert fit([3.0], [1.0]) is None
    assert fit([3.0, 4.0], [0.0, 1.0]) is None
