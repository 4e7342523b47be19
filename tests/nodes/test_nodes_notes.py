"""What people should know of versions: lighter models that answer, guards; of what nodes say."""

from __future__ import annotations

from typing import Any

import pytest

from nodes.guard.lately import Lately
from nodes.noted import notes_of


def stood_in(cause: str, recent: int) -> dict[str, Any]:
    of = {"model": "digits", "version": "1"}
    return {**of, "cause": cause, "answers": 5, "recent": recent}


def guarded(rows: int, far: int, since: str = "") -> dict[str, Any]:
    row = {"model": "digits", "version": "1", "rows": 900, "unfamiliar": 9, "bound": 0.05}
    row |= {"recent_rows": rows, "recent_unfamiliar": far}
    return {"guards": [row | ({"since": since} if since else {})]}


def test_answers_of_all_nodes_are_added_by_cause() -> None:
    lite = {"model": "lite", "version": "1"}
    nodes: list[dict[str, Any]] = [
        {"stages": [lite | {"stood_in": [stood_in("UNAVAILABLE", 2)]}]},
        {"stages": [lite | {"stood_in": [stood_in("UNAVAILABLE", 1)]}, lite]},
        {"requests": {"stood_in": [stood_in("DEADLINE_EXCEEDED", 4)]}},
        {"role": "gateway"},
    ]
    (note,) = notes_of(nodes)
    assert (note.about, note.warns) == ("lighter model", True)
    assert [*note.cells.values()] == [
        "4 DEADLINE_EXCEEDED, 3 UNAVAILABLE",
        "its edge, lite@1",
        "15",
    ]
    (note,) = notes_of([{"stages": [lite | {"stood_in": [stood_in("UNAVAILABLE", 0)]}]}])
    assert (note.cells["degraded answers, 5 minutes"], note.warns) == ("0", False)


@pytest.mark.parametrize(
    ("nodes", "share", "since"),
    [
        ([guarded(0, 0)], "no rows", ""),
        ([guarded(100, 1), guarded(300, 3)], "1.0% of 400 rows", ""),
        ([guarded(100, 0), guarded(100, 20, "b"), guarded(50, 30, "a")], "20.0% of 250 rows", "a"),
        ([{"guards": [{"model": "digits", "version": "1", "rows": 1, "unfamiliar": 0}]}], "no", ""),
    ],
)
def test_a_guard_has_one_row_of_all_its_nodes(
    nodes: list[dict[str, Any]], share: str, since: str
) -> None:
    (note,) = notes_of(nodes)
    assert note.cells["unfamiliar, 5 minutes"].startswith(share)
    assert note.cells["above it since"] == (since or "-")
    assert note.warns == bool(since)


@pytest.mark.parametrize(
    ("rows", "far", "false_alarms", "many"),
    [
        (0, 0, 0.01, False),
        (9, 9, 0.01, False),  # too few to say anything
        (10, 10, 0.01, True),
        (200, 10, 0.01, False),  # just the bound
        (199, 10, 0.01, True),
        (1000, 1000, 0.5, False),  # five times a half is no bound
    ],
)
def test_so_many_unfamiliar_rows_are_too_many(
    rows: int, far: int, false_alarms: float, many: bool
) -> None:
    assert Lately(rows, far, false_alarms).are_too_many == many
