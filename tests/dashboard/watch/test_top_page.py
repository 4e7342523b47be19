"""The terminal's page over fed pictures: what it shows, its keys, what strangers can do to it."""

from __future__ import annotations

import asyncio
import html
import json
import re
from typing import Any

import pytest
from statuses import a_stage, a_status
from textual.widgets import DataTable, Static

from nodes.watch.dashboard.page_state import PageState
from nodes.watch.top.app import TopApp
from swarm.subjects import Subjects

NARROW, WIDE = (80, 24), (160, 40)
HOSTILE = "<script>[bold red]x[/][@click=app.quit]y[/]\x1b[2J\u202e[/b]"


class Simulation:
    """A picture with a clock of its own, and the page over it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = PageState("default", wall=lambda: int(self.now * 1000))
        self.state.take_link(True, "127.0.0.1:4222", "", self.now)
        self.urgent = asyncio.Event()
        self.rollouts: dict[str, str] = {}
        self.app = TopApp(self.state, self.urgent, lambda: self.rollouts, lambda: self.now)

    def speak(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            self.send(document["node"], json.dumps(document).encode())

    def send(self, node: str, data: bytes) -> None:
        self.state.take_status(Subjects().status(node), data, self.now)

    def tell(self, kind: str, **fields: Any) -> None:
        event = json.dumps({"v": 1, "node": "teller", "kind": kind} | fields).encode()
        self.state.take_event(f"swarm.default.events.{kind}", event, self.now)

    def second(self) -> None:
        self.now += 1.0
        self.state.tick(self.now)

    @property
    def table(self) -> DataTable[Any]:
        return self.app.screen_stack[0].query_one(DataTable)

    @property
    def nodes(self) -> list[str]:
        """Ids of the table's rows, from the top."""
        return [str(row.key.value) for row in self.table.ordered_rows]

    def cell(self, node: str, column: str) -> str:
        return str(self.table.get_cell(node, column))

    def panel(self, name: str) -> str:
        return str(self.app.screen_stack[0].query_one(f"#{name}", Static).content)

    @property
    def text(self) -> str:
        """Of the page that is above."""
        return str(self.app.screen.query_one("#text", Static).content)

    @property
    def drawn(self) -> list[str]:
        """The lines of the whole screen, as a terminal has them."""
        picture = self.app.export_screenshot()
        rows: dict[float, list[tuple[float, str]]] = {}
        for x, y, words in re.findall(
            r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture
        ):
            rows.setdefault(float(y), []).append((float(x), html.unescape(words)))
        return [
            "".join(w for _, w in sorted(words)).replace("\xa0", " ") for words in rows.values()
        ]


@pytest.fixture
async def simulation() -> Simulation:
    return Simulation()


def a_fleet(count: int, rate: float = 0.0) -> list[dict[str, Any]]:
    """Nodes of four stages, `shard-1-n000` and so on; the later ones have more requests."""
    return [
        a_status(f"shard-{n % 4 + 1}-n{n:03d}", (n % 4 + 1,), rate=rate + n) for n in range(count)
    ]


async def test_80_columns_show_state_role_rate_latency_and_queue_of_each_node(
    simulation: Simulation,
) -> None:
    simulation.speak(*a_fleet(8))
    async with simulation.app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        lines = simulation.drawn
        heading = next(line for line in lines if "state" in line and "role" in line)
        for column in ("node", "model", "req/s", "compute ms", "waiting"):
            assert column in heading
        row = next(line for line in lines if "…n003" in line)
        assert all(word in row for word in ("✓ ready", "shard-4", "digits@1", "3.00", "1.00/2.50"))
        assert max(map(len, lines)) <= 80
        assert "All well: 8 nodes, 4 stages" in simulation.panel("verdict")
        assert "digits@1" in simulation.panel("pipelines")


async def test_a_wider_screen_shows_more_and_follows_its_size(simulation: Simulation) -> None:
    simulation.speak(*a_fleet(3))
    async with simulation.app.run_test(size=NARROW) as pilot:
        narrow = len(simulation.table.columns)
        await pilot.resize_terminal(*WIDE)
        await pilot.pause()
        assert len(simulation.table.columns) > narrow
        assert simulation.cell("shard-1-n000", "host") == "pi-1"
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        assert simulation.nodes == ["shard-1-n000", "shard-2-n001", "shard-3-n002"]
        assert not simulation.app.screen.query_one("#events").display


async def test_trouble_stands_first_as_it_happens(simulation: Simulation) -> None:
    simulation.speak(*a_fleet(6))
    async with simulation.app.run_test(size=NARROW) as pilot:
        simulation.second()
        simulation.tell("died", subject="shard-3-n002")
        simulation.speak(a_status("shard-4-n003", (4,), state="loading", detail="fetching"))
        simulation.urgent.set()
        await pilot.pause()
        simulation.app.show()
        assert simulation.nodes[:2] == ["shard-3-n002", "shard-4-n003"]
        assert simulation.cell("shard-3-n002", "state") == "✕ gone"
        assert "✕ digits, stage 3: no node serves it" in simulation.panel("verdict")
        assert "died …n002" in simulation.panel("events")


async def test_keys_sort_turn_and_filter(simulation: Simulation) -> None:
    simulation.speak(*a_fleet(8))
    async with simulation.app.run_test(size=NARROW) as pilot:
        for _ in range(5):
            await pilot.press("s")
        assert "by rate" in simulation.panel("heading")
        assert simulation.nodes[0] == "shard-4-n007"
        await pilot.press("r")
        assert simulation.nodes[0] == "shard-1-n000"
        await pilot.press("slash", *"SHARD-2 ready")
        assert simulation.nodes == ["shard-2-n001", "shard-2-n005"]
        assert "2 of 8 nodes" in simulation.panel("heading")
        await pilot.press("enter", "escape")
        assert len(simulation.nodes) == 8
        await pilot.press("slash", *"no such node", "enter", "enter")
        assert simulation.nodes == []
        await pilot.press("escape", "slash", *"a/b")
        assert simulation.panel("heading").endswith("filter: a/b")
        await pilot.press("enter", "enter")
        assert len(simulation.app.screen_stack) == 1, "there is no node to show"


async def test_enter_shows_a_node_live_and_escape_comes_back(simulation: Simulation) -> None:
    simulation.speak(*a_fleet(4))
    async with simulation.app.run_test(size=NARROW) as pilot:
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert simulation.text.startswith("shard-3-n002\n✓ ready")
        assert "host      pi-1 pid 4711" in simulation.text
        simulation.second()
        stage = a_stage(3, waiting=77)
        simulation.speak(a_status("shard-3-n002", (3,), detail="much to do") | {"stages": [stage]})
        simulation.tell("took-over", node="shard-3-n002", stage=2)
        simulation.app.show()
        assert "much to do" in simulation.text
        assert "   77" in simulation.text
        assert "took-over" in simulation.text
        await pilot.press("escape", "e")
        await pilot.pause()
        assert "took-over" in simulation.text
        await pilot.press("escape")
        assert len(simulation.app.screen_stack) == 1
        assert simulation.cell("shard-3-n002", "waiting") == "77"


async def test_the_cursor_stays_at_its_node_when_others_come_and_move(
    simulation: Simulation,
) -> None:
    simulation.speak(*a_fleet(8))
    async with simulation.app.run_test(size=NARROW) as pilot:
        await pilot.press("down", "down", "down")
        chosen = simulation.nodes[3]
        simulation.speak(a_status("aaa-new", (1,), state="failed"))
        simulation.app.show()
        assert simulation.nodes[0] == "aaa-new"
        await pilot.press("enter")
        await pilot.pause()
        assert simulation.text.startswith(chosen)


async def test_objectives_rollouts_and_split_traffic_are_shown(simulation: Simulation) -> None:
    slo = {"model": "digits", "p99_ms": 20.0, "burning": "latency", "burn": {"5m": 15.2}}
    simulation.speak(a_status("gateway-1", (1,), slo=[slo]), a_status("plain", (1,)))
    shares = [{"version": "1", "share": 90}, {"version": "2", "share": 10}]
    simulation.state.take_desired("digits", {"serve": shares})
    simulation.rollouts["digits"] = "2 rolls out: 10 %, step 1 of 10"
    async with simulation.app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        models = simulation.panel("models")
        assert "1 90 % · 2 10 %" in models
        assert "2 rolls out: 10 %, step 1 of 10" in models
        assert "misses its objective: 99 % within 20 ms" in models
        assert "digits@1 90 %" in simulation.panel("pipelines")


async def test_a_lost_connection_is_said_and_recovers(simulation: Simulation) -> None:
    simulation.speak(*a_fleet(4))
    async with simulation.app.run_test(size=NARROW) as pilot:
        simulation.state.take_link(False, "", "connection [/] refused", simulation.now)
        simulation.app.show()
        assert "the mesh cannot be reached" in simulation.panel("verdict")
        assert "connection [/] refused" in simulation.panel("verdict")
        simulation.state.take_link(True, "x", "", simulation.now)
        simulation.app.show()
        await pilot.pause()
        assert "All well" in simulation.panel("verdict")


async def test_markup_and_steering_characters_of_strangers_stay_text(
    simulation: Simulation,
) -> None:
    fields = dict.fromkeys(("detail", "host", "software", "since"), HOSTILE)
    simulation.speak(a_status("evil", (1,), **fields))
    simulation.tell("rejected", node="evil", detail=HOSTILE)
    async with simulation.app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        shown = "<script>[bold red]x[/][@click=app.quit]y[/]?[2J?[/b]"
        assert shown[:13] in simulation.cell("evil", "host")
        assert shown in simulation.panel("events")
        await pilot.press("enter")
        await pilot.pause()
        assert shown in simulation.text
        assert not {"\x1b", "\u202e"} & set("".join(simulation.drawn))


async def test_a_node_that_says_the_absurd_is_marked_and_shown_with_what_can_be(
    simulation: Simulation,
) -> None:
    simulation.speak(a_status("honest", (1,)))
    absurd = a_stage(1, waiting=-1, compute_ms="fast", counters={"served": 10**400})
    simulation.speak(a_status("absurd", (1,), rss_bytes="x") | {"stages": [absurd]})
    simulation.send("garbage", b"\xff" * 100)
    async with simulation.app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert simulation.nodes[0] == "absurd"
        assert simulation.cell("absurd", "state") == "▲ ready"
        assert simulation.cell("honest", "state") == "✓ ready"
        assert "“absurd” is not believed" in simulation.panel("verdict")
        await pilot.press("enter")
        await pilot.pause()
        assert "not believed: absurd:" in simulation.text


async def test_a_flood_of_one_node_marks_it_and_leaves_the_page_alive(
    simulation: Simulation,
) -> None:
    simulation.speak(*a_fleet(3))
    flood = json.dumps(a_status("loud", (1,))).encode()
    async with simulation.app.run_test(size=NARROW) as pilot:
        for _ in range(5000):
            simulation.send("loud", flood)
        simulation.second()
        simulation.app.show()
        assert simulation.cell("loud", "state") == "▲ ready"
        assert "flood" in simulation.panel("verdict")
        await pilot.press("slash", *"n001")
        assert simulation.nodes == ["shard-2-n001"], "keys work on"


async def test_only_cells_that_changed_are_touched_and_rows_are_not_made_again(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.speak(*a_fleet(200, rate=1))
    async with simulation.app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        simulation.app.show()
        touched: list[tuple[str, str]] = []
        monkeypatch.setattr(
            simulation.table, "update_cell", lambda node, column, _: touched.append((node, column))
        )
        for name in ("clear", "add_row", "remove_row", "add_column"):
            monkeypatch.setattr(simulation.table, name, lambda *_, **__: pytest.fail("made again"))
        simulation.second()
        documents = a_fleet(200, rate=1)
        documents[7]["rate"] = 999.0
        simulation.speak(*documents)
        simulation.app.show()
        assert touched == [("shard-4-n007", "rate")]


async def test_q_and_ctrl_c_end_it(simulation: Simulation) -> None:
    async with simulation.app.run_test(size=NARROW) as pilot:
        await pilot.press("e", "q")
        assert not simulation.app.is_running or simulation.app.return_code == 0
    other = Simulation()
    async with other.app.run_test(size=NARROW) as pilot:
        await pilot.press("ctrl+c")
        assert other.app.return_code == 0
