"""What a hop says of a request that is unlike the model's calibration data: how unlike, and which
of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

SCORE, ROWS = "unfamiliarity", "unfamiliar_rows"  # fields of a hop
MOST_NAMED = 32  # rows: a hop's field has 255 bytes at most between processes of one host


def rows_text(rows: Iterable[int]) -> str:
    """Row numbers as `0,3`; of many the first ones, with a `…` behind them."""
    named = [str(row) for row in rows]
    more = ["…"] if len(named) > MOST_NAMED else []
    return ",".join([*named[:MOST_NAMED], *more])


def score_of(hops: Iterable[Mapping[str, Any]]) -> float:
    """The highest score of hops' fields, 0.0 where none has one."""
    scores = [hop.get(SCORE) for hop in hops]
    told = [float(each) for each in scores if isinstance(each, int | float)]
    return max([each for each in told if isfinite(each) and each > 0], default=0.0)


def rows_of(hops: Iterable[Mapping[str, Any]]) -> str:
    """The text of the first hop that names rows, "" where none does."""
    texts = (hop.get(ROWS) for hop in hops)
    return next((text[:255] for text in texts if isinstance(text, str)), "")


def told_of(score: float, rows: str) -> dict[str, bool | str | float]:
    """What an answer in JSON says of it."""
    told: dict[str, bool | str | float] = {"unfamiliar": score > 1, SCORE: score}
    return told | ({ROWS: rows} if rows else {})
