"""One session at one stage: what it holds, what the next stage holds, what is kept for it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from swarm.language.keys import id_of
from swarm.language.request import Opening
from swarm.language.steps import TokenStep


@dataclass(frozen=True, slots=True)
class Chunk:
    """Hidden states of the tokens `[position, end)`, as they were computed in one run."""

    position: int
    rows: np.ndarray

    @property
    def end(self) -> int:
        return self.position + len(self.rows)


@dataclass(frozen=True, slots=True)
class ComputedDrafts:
    """Drafts that were computed behind the tokens that a slot holds. rows: their hidden states,
    None at the last stage."""

    position: int
    ids: tuple[int, ...]
    rows: np.ndarray | None


class KeptStates:
    """The latest hidden states of a session, without a gap: `[start, end)`."""

    __slots__ = ("chunks", "nbytes")

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.nbytes = 0

    @property
    def start(self) -> int:
        return self.chunks[0].position if self.chunks else 0

    @property
    def end(self) -> int:
        return self.chunks[-1].end if self.chunks else 0

    def put(self, chunk: Chunk) -> int:
        """Keep a chunk that follows those before; others are kept already. The bytes it added."""
        if self.chunks and chunk.position != self.end:
            return 0
        self.chunks.append(chunk)
        self.nbytes += chunk.rows.nbytes
        return chunk.rows.nbytes

    def drop_first(self) -> int:
        """Forget the oldest chunk, but the last one: a sender repeats that. The bytes it freed."""
        if len(self.chunks) < 2:
            return 0
        freed = self.chunks.popleft().rows.nbytes
        self.nbytes -= freed
        return freed

    def cut(self, end: int) -> int:
        """Forget what lies behind `end`. The bytes that were freed."""
        freed = 0
        while self.chunks and self.end > end:
            freed += self.chunks.pop().rows.nbytes
        self.nbytes -= freed
        return freed

    def clear(self) -> int:
        """Forget all. The bytes that were freed."""
        freed, self.nbytes = self.nbytes, 0
        self.chunks.clear()
        return freed

    def since(self, position: int) -> list[Chunk]:
        """The chunks with tokens from `position` on."""
        found: deque[Chunk] = deque()
        for chunk in reversed(self.chunks):
            if chunk.end <= position:
                break
            found.appendleft(chunk)
        return list(found)


@dataclass(slots=True)
class Stream:
    """What a follower of a session gets. sent, held: tokens, as far as it was sent and as it said.
    at: when it last said something, or was sent something behind all that it held. heard: it has
    said something. row: bytes of a token."""

    node: str
    sent: int
    held: int
    at: float
    heard: bool = False
    row: int = 0

    @property
    def ahead(self) -> int:
        """Bytes on their way."""
        return (self.sent - self.held) * self.row


@dataclass(slots=True)
class Session:
    """A session's slot and record.

    key: the nodes' name of it, which they tell to nobody else. id: what all others see of it. ids:
    all that are known here. held: tokens whose KV is in the slot. sent: tokens that the next
    stage holds or has on its way, as far as known. to: the next stage's node, "" for none. back:
    where the stage before hears words. route: nodes of later stages, by stage. pending: steps that
    wait for their run. touched: when it was last heard of. ran: when its last run
    began. reaches: the end of the step that is running. refused: nodes that had no slot for it.
    announce: the next stage has not heard the present opening yet. shared: tokens whose KV were
    another session's. guess: of the latest run, None if that had no drafts. offered: where the
    drafts end that the next stage has got behind `sent`, if it got some. stream: to the node that
    follows this session, at rest until `rests`. follows: another node serves this session, and this
    one computes what it computes. owes: the sender is to hear how much is held.
    """

    key: str
    opening: Opening
    epoch: int
    slot: int
    touched: float
    ran: float = 0.0
    back: str = ""
    ids: list[int] = field(default_factory=list)
    held: int = 0
    sent: int = 0
    to: str = ""
    kept: KeptStates = field(default_factory=KeptStates)
    route: dict[int, str] = field(default_factory=dict)
    pending: deque[TokenStep] = field(default_factory=deque)
    running: bool = False
    reaches: int = 0
    closed: bool = False
    announce: bool = False
    shared: int = 0
    guess: ComputedDrafts | None = None
    offered: int = 0
    stream: Stream | None = None
    rests: float = 0.0
    follows: bool = False
    owes: bool = False
    refused: set[str] = field(default_factory=set)
    resent: tuple[float, int, str] = (-1e9, -1, "")  # when, from where, to whom
    asked: tuple[float, int] = (-1e9, -1)  # when the stage before was told what lacks, from where
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = id_of(self.key)

    @property
    def reach(self) -> int:
        """Tokens that are held once all that is pending has run."""
        running = self.reaches if self.running else 0
        return max([self.held, running, *(step.end for step in self.pending)])

    def settle(self, end: int) -> int:
        """Of the drafts behind `held`, take in those that the ids before `end` say to be right. The
        bytes of hidden states that are kept more."""
        guess, added = self.guess, 0
        while guess is not None and self.held < min(end, len(self.ids)):
            at = self.held - guess.position
            if not 0 <= at < len(guess.ids) or guess.ids[at] != self.ids[self.held]:
                break
            if guess.rows is not None:
                added += self.kept.put(Chunk(self.held, guess.rows[at : at + 1].copy()))
            self.held += 1
        return added

    def learn(self, position: int, ids: tuple[int, ...]) -> None:
        """Take in ids of a step."""
        if position + len(ids) > len(self.ids) and position <= len(self.ids):
            self.ids[position:] = ids
