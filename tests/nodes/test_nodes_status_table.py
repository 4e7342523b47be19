"""The table of `swarm status` and `swarm top` fits its screen, whatever the nodes say."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from statuses import a_stage, a_status

from nodes.cli.short_ids import CUT, short_ids
from nodes.cli.status_table import columns_that_fit, node_view, served, status_table
from swarm.fleet.view import rate_of

ids = st.lists(st.text("ab-[/]", min_size=1, max_size=30), unique=True, max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
IDLE = {"p50": 0.0, "p99": 0.0, "ewma": 0.0}
HOSTILE = [
    None,
    [],
    {},
    "1",
    True,
    -1,
    10**400,
    float("nan"),
    float("inf"),
    "[bold red]x[/]",
    "[/]",
    "<script>alert(1)</script>",
    "a\nb\x1b[2J\r\x07\u202e",
    "\ud800",
    "漢" * 300,
    "x" * 100_000,
]


def drawn(
    statuses: list[dict[str, Any]], width: int, height: int | None = None, rate: float | None = None
) -> list[str]:
    """The lines that a terminal of this width shows."""
    console = Console(width=width, height=height or 24, file=io.StringIO(), color_system=None)
    views = [node_view(status, rate=rate) for status in statuses]
    with console.capture() as capture:
        console.print(status_table(views, width, height))
    return capture.get().rstrip("\n").split("\n")


@given(ids)
def test_short_ids_are_ends_of_their_ids_and_differ(nodes: list[str]) -> None:
    labels = short_ids(nodes)
    assert set(labels) == set(nodes)
    assert len(set(labels.values())) == len(nodes)
    for node, label in labels.items():
        if label != node:
            end = label.removeprefix(CUT)
            assert [other for other in nodes if other.endswith(end)] == [node]
            assert len(label) < len(node)


def test_a_short_id_is_no_longer_than_it_needs_to_be() -> None:
    labels = short_ids(
        ["shard-1-host-0a1b2c", "shard-2-host-9x1b2c", "fallback-host-777777", "cam"]
    )
    assert labels == {
        "shard-1-host-0a1b2c": "…a1b2c",
        "shard-2-host-9x1b2c": "…x1b2c",
        "fallback-host-777777": "…7777",
        "cam": "cam",
    }


columns = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), max_size=12)


@given(columns, st.integers(0, 200), st.integers(0, 100))
def test_a_wider_screen_shows_all_that_a_narrower_one_does(
    of: list[tuple[int, int]], width: int, more: int
) -> None:
    narrow, wide = columns_that_fit(of, width), columns_that_fit(of, width + more)
    assert set(narrow) <= set(wide)
    assert {p for p, (need, _) in enumerate(of) if need == 0} <= set(narrow)


@given(columns, st.integers(0, 200))
def test_optional_columns_never_pass_the_edge_of_the_screen(
    of: list[tuple[int, int]], width: int
) -> None:
    chosen = columns_that_fit(of, width)
    if any(of[p][0] for p in chosen):
        assert sum(of[p][1] for p in chosen) + 2 * (len(chosen) - 1) <= width


def test_eighty_columns_show_the_needed_figures_of_a_node_on_one_line() -> None:
    lines = drawn([a_status("shard-1-pi-1-0a1b2c")], 80, rate=12.5)
    assert len(lines) == 4
    assert lines[3].split() == [
        *("shard-1", "…1b2c", "ready", "12.5", "1.00/2.50", "2", "1", "digits@1")
    ]


def test_a_wider_screen_shows_more_columns() -> None:
    narrow, wide = drawn([a_status()], 80), drawn([a_status()], 140)
    for figure in ("7", "123", "pi-1"):
        assert figure not in narrow[3].split()
        assert figure in wide[3].split()


def test_a_figure_that_nothing_was_measured_for_is_a_dash() -> None:
    idle = a_status(stages=[a_stage(compute_ms=IDLE, queue_ms=IDLE)], model="")
    line = drawn([idle], 140)[3]
    assert "0.00" not in line
    assert line.split()[3:5] == ["-", "-"]
    assert drawn([a_status(stages=[])], 80)[3].split()[3:7] == ["-", "-", "-", "-"]


def test_an_edge_shows_its_own_counts() -> None:
    edge = a_status(role="edge", stages=[], edge={"answered": 77, "failed": 5})
    assert served(edge) == 77
    assert drawn([edge], 80)[3].split()[3:7] == ["-", "-", "-", "5"]


def test_weight_versions_are_shown_where_they_are_not_zero() -> None:
    learned = [a_stage(weights=7), a_stage(weights=9), a_stage(weights=0)]
    lines = drawn([a_status("a"), a_status("b", stages=learned)], 80)
    assert "weights" in lines[1]
    assert "7,9" in lines[4].split()
    assert "weights" not in "".join(drawn([a_status()], 140))


def test_markup_in_ids_and_names_is_shown_as_text() -> None:
    lines = drawn([a_status("[b]cam[/]", model="[link=x]m[/]", role="[/]")], 140)
    assert "[b]cam[/]" in lines[3]
    assert "[link=x]m[/]@1" in lines[3]
    assert lines[3].startswith("[/]")


@pytest.mark.parametrize("width", [20, 80, 140])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: ascii(v)[:20])
def test_absurd_values_keep_a_node_on_its_line(value: object, width: int) -> None:
    absurd = [a_status(**{field: value}) for field in a_status()]
    absurd += [a_status(stages=[value]), a_status(edge={"answered": value, "failed": value})]
    absurd += [a_status(stages=[a_stage(**{field: value})]) for field in a_stage()]
    absurd += [a_status(stages=[a_stage(compute_ms={"p50": value, "p99": value})])]
    lines = drawn([*absurd, dict.fromkeys(a_status(), value)], width)
    below = next(n for n, line in enumerate(lines) if set(line) <= {"─", " "})
    assert len(lines[below + 1 :]) == len(absurd) + 1
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from([*a_status(), "edge"]), json_values), max_size=5),
    st.sampled_from([80, 140]),
)
def test_no_document_breaks_the_table(documents: list[dict[str, Any]], width: int) -> None:
    lines = drawn([a_status(), *documents], width)
    assert len(lines) == 4 + len(documents)
    assert all(cell_len(line) <= width for line in lines)


def test_an_absurd_figure_is_marked() -> None:
    line = drawn([a_status(queue_depth=float("nan"), rss_bytes=-1)], 140)[3].split()
    assert line.count("?") == 2


def test_a_low_screen_keeps_the_nodes_that_are_not_ready_and_counts_the_others() -> None:
    fleet = [a_status(f"camera-{n:03}-aaaa") for n in range(200)]
    fleet[150] |= {"state": "failed"}
    lines = drawn(fleet, 80, height=24)
    assert len(lines) <= 24
    assert sum("failed" in line.split()[2:3] for line in lines) == 1
    assert "and 180 more nodes" in lines[-1]


def test_a_rate_is_known_after_two_counts() -> None:
    assert rate_of([]) is None
    assert rate_of([(1.0, 10.0)]) is None
    assert rate_of([(1.0, 10.0), (3.0, 30.0)]) == 10.0
    assert rate_of([(1.0, 10.0), (3.0, 5.0)]) is None


def test_a_document_survives_the_way_over_the_wire() -> None:
    told = json.loads('{"node": "n", "queue_depth": NaN, "stages": [{"weights": 1e999}]}')
    assert "?" in drawn([told], 80)[3]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"slot": [3, 5], "plan": 2}, "stages 3-5 of plan 2; serving"),
        ({"measured": True}, "no slot; serving"),
        ({"measured": False}, "measures its pace; serving"),
        ({"lacking": "no room"}, "no room; serving"),
        ({"slot": ["[/]", None], "plan": {}}, "stages ?-- of plan ?; serving"),
    ],
)
def test_a_node_of_role_auto_says_which_stages_are_its_own(plan: dict[str, Any], said: str) -> None:
    assert node_view({"detail": "serving", "plans": [plan]}).detail == said


def test_the_stages_of_slots_stand_in_a_table_of_80_columns() -> None:
    slots = [{"slot": [1, 1], "plan": 2}, {"slot": [3, 12], "plan": 1}]
    table = status_table([node_view({"node": "auto-a", "role": "auto", "plans": slots})], 80)
    at = [column.header for column in table.columns].index("stages")
    assert [str(cell) for cell in table.columns[at].cells] == ["1-1,3-12"]
