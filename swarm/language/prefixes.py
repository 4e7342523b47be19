"""Beginnings of prompts that slots hold: a new session copies them, and computes the rest. Pure.

They end at boundaries of chunks, and were computed in the chunks in which the new session would
have computed them: its bits are the same. The slot of a session that has ended keeps what it holds
until another session needs the slot, so that this takes no memory of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from swarm.language.marks import chain, tell
from swarm.language.session import Session
from swarm.language.steps import chunk_tokens


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """Token ids whose KV are in a slot. to: the next stage's node that had them too."""

    slot: int
    ids: Sequence[int]
    to: str


@dataclass(frozen=True, slots=True)
class PrefixCopy:
    """The KV of the first tokens of a slot, for another one: before all runs that follow."""

    source: int
    target: int
    tokens: int


class Prefixes:
    """Of one stage. width: of the model."""

    def __init__(self, width: int) -> None:
        self.size = chunk_tokens(width)
        self._kept: dict[int, PrefixSource] = {}  # by slot; those that ended last are the last

    def below(self, tokens: int) -> int:
        """The last boundary that leaves one of so many tokens to be computed."""
        return max(0, tokens - 1) // self.size * self.size

    def keep(self, session: Session) -> None:
        """A session leaves its slot."""
        source = self._of(session)
        self._kept.pop(session.slot, None)
        if source.ids:
            self._kept[session.slot] = source

    def place(self, free: Collection[int], source: PrefixSource | None, tokens: int) -> int:
        """The slot of a new session, of `free` ones, in which what it held is lost. source, tokens:
        what the session begins with. The longest unused beginnings go first."""
        if source is not None and source.slot in free and len(source.ids) == tokens:
            slot = source.slot  # it is all that the slot holds: nothing is lost
        elif empty := [each for each in free if each not in self._kept]:
            slot = min(empty)
        elif source is not None and source.slot in free:
            slot = source.slot
        else:
            slot = next(each for each in self._kept if each in free)
        self._kept.pop(slot, None)
        return slot

    def longest(
        self, ids: Sequence[int], sessions: Iterable[Session]
    ) -> tuple[PrefixSource | None, int]:
        """Where most of the beginning of `ids` is, and how many of them; sessions: those that are
        in their slots."""
        best, most = None, 0
        for source in (*self._kept.values(), *map(self._of, sessions)):
            tokens = self._same(source.ids, ids)
            if tokens > most:
                best, most = source, tokens
        if best is not None and best.slot in self._kept:
            self._kept[best.slot] = self._kept.pop(best.slot)
        return best, most

    def marks(self, ids: Sequence[int]) -> list[bytes]:
        """Of a beginning, see `swarm.language.marks.chain`."""
        return chain(ids, self.size)

    def told(self, sessions: Iterable[Session]) -> bytes:
        """What this stage holds, for other nodes; sessions: those that are in their slots."""
        latest = sorted(sessions, key=lambda session: -session.touched)
        sources = (*map(self._of, latest), *reversed(self._kept.values()))
        return tell(self.marks(source.ids) for source in sources)

    def _of(self, session: Session) -> PrefixSource:
        """Of what a session holds, the whole chunks of its prompt."""
        held = min(session.held, session.reaches) if session.running else session.held
        end = min(held, session.opening.prompt) // self.size * self.size
        return PrefixSource(session.slot, session.ids[:end], session.to)

    def _same(self, kept: Sequence[int], ids: Sequence[int]) -> int:
        """How many whole chunks begin both, in tokens."""
        size, end = self.size, 0
        while end + size <= min(len(kept), len(ids)):
            if list(kept[end : end + size]) != list(ids[end : end + size]):
                break
            end += size
        return end
