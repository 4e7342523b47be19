"""The pages behind the table: of one node, of all events. They show texts, and decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from nodes.watch.top.panels import event_text, lines


class TextScreen(Screen[None]):
    """A text that scrolls, made anew by `show()`. text(width): what it shows now."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,backspace,left", "app.pop_screen", "Back"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, heading: str, text: Callable[[int], Text]) -> None:
        super().__init__()
        self._heading = heading
        self._text = text
        self._shown = Text()
        self._body = Static(id="text")

    def compose(self) -> ComposeResult:
        yield Static(Text(self._heading, no_wrap=True, overflow="ellipsis"), classes="heading")
        with VerticalScroll():
            yield self._body
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.show()

    def show(self) -> None:
        """Take the text as of now; nothing before the page is there."""
        if not self._body.is_attached:
            return
        text = self._text(self.size.width - 2)
        if text != self._shown:
            self._shown = text
            self._body.update(text)


def events_text(events: Sequence[dict[str, Any]], names: dict[str, str]) -> Text:
    """All of them, the last one first."""
    if not events:
        return Text("no event yet", style="dim")
    return lines(event_text(event, names) for event in reversed(events))
