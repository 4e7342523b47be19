"""Token ids as text, piece by piece: whole characters only, and nothing of a stop string. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]  # the text of token ids
_UNFINISHED = "\ufffd"  # what a decoder writes for the beginning of a character


class GeneratedText:
    """`push` each generated id in its turn; a stream that began elsewhere is caught up so.

    stopped: a stop string was found, and the text ends before it."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self.stopped = False
        self.pushed = 0
        self._decode = decode
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._before = self._read = 0  # ids whose text is context, and ids that were read
        self._held = ""  # text that may be the beginning of a stop string

    def push(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        self._ids.append(token)
        self.pushed += 1
        if self.stopped:
            return ""
        # A token's text depends on those before it: decode both, and take the difference.
        context = self._decode(self._ids[self._before : self._read])
        grown = self._decode(self._ids[self._before :])
        if len(grown) <= len(context) or grown.endswith(_UNFINISHED):
            return ""
        self._before, self._read = self._read, len(self._ids)
        return self._released(self._held + grown[len(context) :])

    def rest(self) -> str:
        """What is left at the end of a text that no stop string ended."""
        context = self._decode(self._ids[self._before : self._read])
        grown = self._decode(self._ids[self._before :])
        text = "" if self.stopped else self._held + grown[len(context) :]
        self._held, self._before = "", len(self._ids)
        self._read = self._before
        return text

    def _released(self, text: str) -> str:
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` with which `stop` may begin."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
