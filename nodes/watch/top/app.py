"""The terminal's page of a fleet: a table of nodes below what is wrong, above what happened.

It reads the dashboard's view, takes over what changed, and touches those cells alone: 200 nodes
that speak each second stay smooth.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rich.console import JustifyMethod
from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from nodes.cli.short_ids import short_ids
from nodes.features import features
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.top.details import node_text
from nodes.watch.top.panels import event_text, lines, models_text, pipelines_text, verdict_text
from nodes.watch.top.rows import (
    NODE,
    TROUBLE,
    Row,
    TopColumn,
    cell_text,
    columns_for,
    is_meant,
    ordered,
)
from nodes.watch.top.screens import TextScreen, events_text
from nodes.watch.top.signs import sign_of
from swarm.client import CONNECT_TIMEOUT
from swarm.link import LinkOptions
from swarm.link.grants import Denial

EVERY = 0.5  # seconds between two looks at the view
AT_MOST_EVERY = 0.2  # seconds, where there is news
MOST_EVENTS = 1000
EVENT_LINES = 4
LOW_SCREEN = 18  # lines, below which no events are shown
OF_THE_TABLE = ("filter", "sort", "turn", "events", "all")  # keys

CSS = """
Screen { layout: vertical; }
.heading { height: 1; background: $panel; text-style: bold; padding: 0 1; }
#verdict { height: auto; max-height: 5; padding: 0 1; }
#pipelines { height: auto; max-height: 5; padding: 0 1; }
#models { height: auto; max-height: 3; padding: 0 1; }
DataTable { height: 1fr; min-height: 4; scrollbar-size-vertical: 1; overflow-x: hidden; }
#events { height: 4; padding: 0 1; border-top: none; background: $panel; }
#filter { height: 1; border: none; padding: 0 1; }
.low #events { display: none; }
TextScreen VerticalScroll { padding: 0 1; }
"""


class NodeTable(DataTable[Text]):
    """A line for each node."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Node")]


class TopApp(App[None]):
    """state: fed by a source beside it. urgent: set where people should see something at once.
    lines(): what becomes of each model, by model. clock(): seconds, that of the view."""

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        # First of all: the keys behind it, however fast they come, are the filter's.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("s", "sort", "Sort"),
        Binding("r", "turn", "Reverse"),
        Binding("e", "events", "Events"),
        Binding("escape", "all", "All", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(
        self,
        state: PageState,
        urgent: asyncio.Event,
        lines: Callable[[], Mapping[str, str]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._state = state
        self._urgent = urgent
        self._lines = lines
        self._clock = clock
        self._rows: dict[str, Row] = {}
        self._parts: dict[str, Any] = {}
        self._news: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._names: dict[str, str] = {}  # short ids
        self._columns: list[TopColumn] = []
        self._order: list[str] = []  # of the rows in the table
        self._cells: dict[str, list[Text]] = {}  # as the table has them
        self._filter = ""
        self._sort, self._backwards = TROUBLE, False

    # --- the page -----------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static(id="heading", classes="heading", markup=False)
        yield Static(id="verdict", markup=False)
        yield Static(id="pipelines", markup=False)
        yield Static(id="models", markup=False)
        yield NodeTable(id="nodes", cursor_type="row")
        yield Input(id="filter", placeholder="words of ids, roles, states, models, hosts")
        yield Static(id="events", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self._lay_out(self.size.width)
        self._table.focus()
        self.show()
        self.run_worker(self._follow(), name="follow the view")

    def on_resize(self, event: events.Resize) -> None:
        if self._columns and columns_for(event.size.width) != self._columns:
            self._lay_out(event.size.width)
        self.screen_stack[0].set_class(event.size.height < LOW_SCREEN, "low")
        if self._columns:
            self._show_panels()

    @property
    def _table(self) -> NodeTable:
        table: NodeTable = self._on_page("#nodes", NodeTable)
        return table

    def _on_page(self, selector: str, kind: type[Any]) -> Any:
        """A widget of the page with the table, whichever screen is above it."""
        return self.screen_stack[0].query_one(selector, kind)

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._urgent.wait()
            self._urgent.clear()
            if not self.is_running:
                return  # the page has ended, and its panels are gone
            self.show()
            await asyncio.sleep(AT_MOST_EVERY)

    def show(self) -> None:
        """Take over what has changed in the view."""
        frame = self._state.changes(self._clock())
        self._parts |= frame
        self._news.extend(frame.get("events", ()))
        gone = [node for node in frame.get("gone", ()) if self._rows.pop(node, None) is not None]
        changed = frame.get("nodes", {})
        if gone or not changed.keys() <= self._rows.keys():
            self._rows |= changed
            self._names = short_ids(self._rows)
            changed = self._rows
        else:
            self._rows |= changed
        self._show_panels()
        self._show_rows(changed)
        if isinstance(self.screen, TextScreen):
            self.screen.show()

    def _show_panels(self) -> None:
        parts, width = self._parts, self.size.width - 2
        if not parts:
            return
        self._set("#heading", self._heading())
        self._set("#verdict", verdict_text(parts["verdict"], parts["link"]))
        self._set("#pipelines", pipelines_text(parts["pipelines"], width))
        models = models_text(parts["models"], self._lines())
        self._set("#models", models)
        self._on_page("#models", Static).display = bool(models)
        last = list(self._news)[-EVENT_LINES:]
        self._set("#events", lines(event_text(event, self._names) for event in last))

    def _set(self, selector: str, text: Text) -> None:
        """Draw a panel anew where its text is another one."""
        widget = self._on_page(selector, Static)
        if widget.content != text:
            widget.update(text)

    def _heading(self) -> Text:
        shown, known = len(self._order), len(self._rows)
        nodes = f"{known} nodes" if shown == known else f"{shown} of {known} nodes"
        backwards = ", reversed" if self._backwards else ""
        words = [f"swarm top · mesh {self._state.mesh} · {nodes}"]
        words.append(f"by {self._sort}{backwards}")
        words += [f"filter: {self._filter}"] if self._filter else []
        return Text(" · ".join(words), no_wrap=True, overflow="ellipsis")

    # --- the table ----------------------------------------------------------------------------

    def _lay_out(self, width: int) -> None:
        """Columns for a screen of this width; all rows are made again."""
        self._columns = columns_for(width)
        table = self._table
        at = self._under_cursor()
        table.clear(columns=True)
        for column in self._columns:
            side: JustifyMethod = "right" if column.right else "left"
            heading = Text(column.heading, justify=side)
            table.add_column(heading, width=column.width, key=column.key)
        self._order, self._cells = [], {}
        self._show_rows(self._rows)
        self._move_to(at)

    def _line(self, row: Row) -> list[Text]:
        _, style = sign_of(row)
        return [
            Text(
                cell_text(column, row, self._names),
                style=style if column.key == "state" else "",
                justify="right" if column.right else "left",
            )
            for column in self._columns
        ]

    def _show_rows(self, changed: Mapping[str, Row]) -> None:
        """Rows come and go by the filter, cells change, and the order last."""
        table, at = self._table, self._under_cursor()
        meant = [row for row in self._rows.values() if is_meant(row, self._filter)]
        order = ordered(meant, self._sort, self._backwards)
        wanted = set(order)
        unwanted = [node for node in self._order if node not in wanted]
        if len(unwanted) > len(order):
            table.clear()
            self._order, self._cells = [], {}
        else:
            for node in unwanted:
                table.remove_row(node)
                del self._cells[node]
            self._order = [node for node in self._order if node in wanted]
        for node in order:
            if node not in self._cells:
                self._cells[node] = self._line(self._rows[node])
                table.add_row(*self._cells[node], key=node)
                self._order.append(node)
            elif node in changed:
                self._change_row(node)
        if self._order != order:
            place = {self._names[node]: number for number, node in enumerate(order)}
            table.sort(NODE, key=lambda cell: place[cell.plain])
            self._order = order
        if unwanted or self._under_cursor() != at:
            self._move_to(at)

    def _change_row(self, node: str) -> None:
        before, after = self._cells[node], self._line(self._rows[node])
        for column, old, new in zip(self._columns, before, after, strict=True):
            if old.plain != new.plain or old.style != new.style:
                self._table.update_cell(node, column.key, new)
        self._cells[node] = after

    def _under_cursor(self) -> str:
        row = self._table.cursor_row
        return self._order[row] if 0 <= row < len(self._order) else ""

    def _move_to(self, node: str) -> None:
        """Keep the cursor at its node, unless it is at the top, where trouble comes first."""
        if self._table.cursor_row > 0 and node in self._order:
            self._table.move_cursor(row=self._order.index(node), scroll=False)

    # --- keys -----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the table are not offered on the pages behind it, nor `/` in the filter."""
        if action == "filter" and isinstance(self.focused, Input):
            return False
        return action not in OF_THE_TABLE or len(self.screen_stack) == 1

    @on(DataTable.RowSelected)
    def _open(self) -> None:
        """A page of the node under the cursor."""
        node = self._under_cursor()
        if node:
            self.push_screen(TextScreen(f"swarm top · {node}", lambda width: self._of(node, width)))

    @on(DataTable.HeaderSelected)
    def _sort_by(self, event: DataTable.HeaderSelected) -> None:
        key = str(event.column_key.value)
        self._backwards = key == self._sort and not self._backwards
        self._sort = key
        self._resort()

    def _of(self, node: str, width: int) -> Text:
        row = self._rows.get(node)
        if row is None:
            return Text("this node is gone, and forgotten", style="dim")
        told = [event for event in self._news if node in (event["node"], event["teller"])]
        return node_text(row, self._state.history_of(node) or {}, told, width)

    def action_events(self) -> None:
        """A page of all events."""

        def text(_: int) -> Text:
            return events_text(list(self._news), self._names)

        self.push_screen(TextScreen("swarm top · events", text))

    def action_sort(self) -> None:
        """By the next column."""
        keys = [TROUBLE, *(column.key for column in self._columns)]
        after = keys.index(self._sort) + 1 if self._sort in keys else 0
        self._sort, self._backwards = keys[after % len(keys)], False
        self._resort()

    def action_turn(self) -> None:
        """The order the other way round."""
        self._backwards = not self._backwards
        self._resort()

    def _resort(self) -> None:
        self._show_rows({})
        self._set("#heading", self._heading())

    def action_filter(self) -> None:
        """Ask for the words of a filter."""
        words = self.query_one("#filter", Input)
        words.display = True
        self.screen.set_focus(words)

    @on(Input.Changed)
    def _filtered(self, event: Input.Changed) -> None:
        self._filter = event.value.strip()
        self._resort()

    @on(Input.Submitted)
    def _filter_stays(self) -> None:
        self._end_filter()

    def action_all(self) -> None:
        """End the filter: all nodes again."""
        self.query_one("#filter", Input).value = ""
        self._end_filter()

    def _end_filter(self) -> None:
        self.query_one("#filter").display = False
        self._table.focus()


async def show(options: LinkOptions, mesh: str, stop: asyncio.Event) -> None:
    """Until `q` or `stop`. Raises `NotConnected`, `NotAdmitted` before anything is drawn, and
    `PermissionDenied` where this user may not hear statuses; later losses are shown."""
    state, news, urgent = PageState(mesh), asyncio.Event(), asyncio.Event()
    source = MeshSource(options, state, news, urgent)
    link = source.link
    told = [each.model_lines(source, state.model_names) for each in features() if each.model_lines]

    def lines() -> dict[str, str]:
        now = time.monotonic()
        return {model: line for each in told for model, line in each.lines(now).items()}

    app = TopApp(state, urgent, lines)
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(source.run(), name="the mesh")]
        try:
            await link.ready(CONNECT_TIMEOUT)
            if not link.grants.may_subscribe(source.subjects.status_all):
                raise Denial(False, source.subjects.status_all).error()
            work += [group.create_task(each.run(), name="lines of models") for each in told]
            work.append(group.create_task(_end_with(stop, app), name="end of the page"))
            await app.run_async()
        finally:
            for task in work:
                task.cancel()
            await link.close()


async def _end_with(stop: asyncio.Event, app: TopApp) -> None:
    await stop.wait()
    app.exit()
