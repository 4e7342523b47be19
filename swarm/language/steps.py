"""What stages say to each other: steps forward, words back. Pure.

A step is (session, position, hidden states): it may come twice, late, or from a sender that took
over, and gives the same bits. It carries its token ids too, so each stage holds the session's whole
record, and any of them can begin the session anew at the next node.

    forward  steps; sessions that have ended or left; a question whether the node lives (`probe`)
             the same steps for a node that follows (`follow`)
    back     behind: a stage holds fewer tokens, and says how many      full: it has no slot
             holds: a follower says how many tokens it holds
             stale: a newer attempt of the session is under way         failed: a run raised
             tokens: chosen by the last stage                           gone: the client is gone
             alive: the answer to a probe                               moved: who serves stage k
    between nodes of stage 1: `asks`, requests that are another node's
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from swarm.errors import DecodeError, InvalidArgument, Status
from swarm.language.request import GenerateRequest, Opening, ids_of, pack_ids
from swarm.subjects import TOKEN, may_answer
from swarm.wire.maps import pack, unpack_map

MOST_MESSAGE = 64 << 20  # bytes
MOST_STEPS = 4096  # of one message
MOST_DRAFTS = 16  # ids of one step
CHUNK_BYTES, LEAST_CHUNK, MOST_CHUNK = 256 << 10, 16, 64


def chunk_tokens(width: int) -> int:
    """Tokens of a prompt's chunk. It belongs to the model alone: whoever computes a prompt anew
    cuts it in the same places, and gets the same bits."""
    return min(max(CHUNK_BYTES // (4 * width), LEAST_CHUNK), MOST_CHUNK)


def chunk_end(position: int, prompt: int, width: int) -> int:
    """Where the chunk ends that begins at or before `position`: chunks of the prompt, then token by
    token, as they were generated."""
    if position >= prompt:
        return position + 1
    size = chunk_tokens(width)
    return min((position // size + 1) * size, prompt)


def chunk_start(position: int, prompt: int, width: int) -> int:
    """Where the chunk begins that `position` lies in."""
    return position if position >= prompt else position - position % chunk_tokens(width)


@dataclass(slots=True)
class TokenStep:
    """Tokens `[position, position + len(ids))` of a session on their way to the next stage.

    known: how many ids its first stage knew: a step that reaches them asks for the next token.
    drafts: guesses of the ids behind, where the next token is asked for: of these, too, the last
    stage chooses what follows, as far as they are what it chose. accepted: ids right before
    `position` that were drafts of the step before.
    rows: [len(ids) + len(drafts), width], float32; None at stage 1. opening: in the step at
    position 0, and where it has changed. route: nodes of later stages that hold the session, by
    stage. prefix: all ids before `position`, in the first step of a session that begins with
    another one's KV."""

    session: str
    epoch: int
    position: int
    known: int
    ids: tuple[int, ...]
    rows: np.ndarray | None = None
    opening: Opening | None = None
    route: dict[int, str] = field(default_factory=dict)
    prefix: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    @property
    def fed(self) -> tuple[int, ...]:
        """What its run takes, at stage 1."""
        return self.ids + self.drafts

    @property
    def end(self) -> int:
        return self.position + len(self.ids)

    @property
    def asks(self) -> bool:
        """Whether the next token is wanted behind it."""
        return self.end == self.known

    @property
    def nbytes(self) -> int:
        return (
            256 + 4 * len(self.ids + self.prefix) + (0 if self.rows is None else self.rows.nbytes)
        )


@dataclass(frozen=True, slots=True)
class PassedRequest:
    """A client's request that a node of stage 1 passes to another one."""

    request: GenerateRequest
    reply: str


@dataclass(slots=True)
class Forward:
    """One message to the next stage. back: the subject that the sender hears words on. closed:
    sessions that have ended, with the number of their last attempt. left: sessions that go on at
    another node. follow: the receiver computes the steps, and sends nothing on. unread: sessions
    whose step could not be read, and why; the other steps of the message are none the worse."""

    back: str
    steps: list[TokenStep] = field(default_factory=list)
    closed: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    probe: bool = False
    asks: list[PassedRequest] = field(default_factory=list)
    follow: bool = False
    unread: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_alone(self) -> bool:
        """Whether nothing that it must not overtake is on its way: each step follows a token that
        came back."""
        return not (self.closed or self.left or self.asks) and all(
            step.asks and len(step.ids) == 1 for step in self.steps
        )

    def pieces(self, largest: int) -> list[Forward]:
        """The same in messages of about `largest` bytes each, in order."""
        if sum(step.nbytes for step in self.steps) <= largest:
            return [self]
        pieces, size = [replace(self, steps=[])], 0
        for step in self.steps:
            if size and size + step.nbytes > largest:
                pieces.append(Forward(self.back, follow=self.follow))
                size = 0
            pieces[-1].steps.append(step)
            size += step.nbytes
        return pieces

    def parts(self) -> list[bytes | memoryview]:
        """The message, in pieces."""
        head: dict[str, Any] = {"v": 1, "back": self.back}
        if self.probe:
            head["probe"] = True
        if self.follow:
            head["follow"] = True
        if self.closed:
            head["closed"] = [[key, epoch] for key, epoch in self.closed.items()]
        if self.left:
            head["left"] = self.left
        if self.asks:
            head["asks"] = [[ask.request.as_doc(), ask.reply] for ask in self.asks]
        if not self.steps:
            return [pack(head)]
        head["steps"] = [_step_doc(step) for step in self.steps]
        rows = [np.ascontiguousarray(s.rows, "<f4") for s in self.steps if s.rows is not None]
        head["width"] = rows[0].shape[1] if rows else 0
        # The hidden states stand behind the map: they are neither copied nor walked through.
        packed = pack(head)
        sized = len(packed).to_bytes(4, "little")
        return [b"\xc1", sized, packed, *(one.data.cast("B") for one in rows)]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Forward:
        """Raises `DecodeError`."""
        if len(data) > MOST_MESSAGE:
            raise DecodeError(f"message of {len(data)} bytes; at most {MOST_MESSAGE} are accepted")
        view = memoryview(data)
        if bytes(view[:1]) != b"\xc1":
            doc, rows = unpack_map(data, MOST_MESSAGE), view[:0]
        else:
            size = int.from_bytes(view[1:5], "little")
            doc, rows = unpack_map(bytes(view[5 : 5 + size]), MOST_MESSAGE), view[5 + size :]
        try:
            return _forward(cls, doc, rows)
        except InvalidArgument as error:
            raise DecodeError(str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DecodeError(f"steps: {error!r:.200}") from None


def _step_doc(step: TokenStep) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "s": step.session,
        "p": step.position,
        "k": step.known,
        "t": pack_ids(step.ids),
    }
    if step.epoch:
        doc["e"] = step.epoch
    for name, ids in (("x", step.prefix), ("d", step.drafts), ("a", step.accepted)):
        if ids:
            doc[name] = pack_ids(ids)
    if step.opening is not None:
        doc["o"] = step.opening.as_doc()
        doc["r"] = [[stage, node] for stage, node in step.route.items()]
    return doc


def _forward(kind: type[Forward], doc: dict[str, Any], rows: memoryview) -> Forward:
    if doc.get("v") != 1:
        raise DecodeError(f"steps of version {doc.get('v')!r} are not read; 1 is")
    width = _count(doc.get("width", 0))
    steps, unread = _read_steps(_listed(doc, "steps", MOST_STEPS), width, rows)
    closed = {_name(key): _count(epoch) for key, epoch in _listed(doc, "closed", MOST_STEPS)}
    left = [_name(one) for one in _listed(doc, "left", MOST_STEPS)]
    asks = [
        PassedRequest(GenerateRequest.read(request), _subject(reply))
        for request, reply in _listed(doc, "asks", MOST_STEPS)
    ]
    probe, follow = doc.get("probe") is True, doc.get("follow") is True
    return kind(_subject(doc["back"]), steps, closed, left, probe, asks, follow, unread)


def _read_steps(
    docs: Sequence[Any], width: int, rows: memoryview
) -> tuple[list[TokenStep], list[tuple[str, str]]]:
    """The steps with their hidden states, and the sessions of those that cannot be read, with the
    reason. Raises `DecodeError` where it is not known whose hidden states are whose."""
    read: list[tuple[TokenStep | None, int]] = []
    unread: list[tuple[str, str]] = []
    for one in docs:
        try:
            step = _read_step(one)
        except (InvalidArgument, KeyError, TypeError, ValueError, AttributeError) as error:
            unread.append((_name(one["s"]), f"a step cannot be read: {error!s:.300}"))
            read.append((None, _ids_in(one, "t") + _ids_in(one, "d")))
        else:
            read.append((step, len(step.fed)))
    if width:
        if len(rows) != 4 * width * sum(size for _, size in read):
            raise DecodeError(f"{len(rows)} bytes of hidden states do not fit their steps")
        table, at = np.frombuffer(rows, "<f4").reshape(-1, width), 0
        for step_or_none, size in read:
            if step_or_none is not None:
                step_or_none.rows = table[at : at + size]
            at += size
    return [step for step, _ in read if step is not None], unread


def _ids_in(doc: Any, name: str) -> int:
    """How many ids a field has, whatever they are."""
    value = doc.get(name)
    if value is None:
        return 0
    return len(value) // 4 if isinstance(value, bytes | memoryview) else len(value)


def _read_step(doc: dict[str, Any]) -> TokenStep:
    ids = ids_of(doc, "t")
    step = TokenStep(
        _name(doc["s"]),
        _count(doc.get("e", 0)),
        _count(doc["p"]),
        _count(doc["k"]),
        ids,
        opening=None if doc.get("o") is None else Opening.read(doc["o"]),
        route={_count(stage): _name(node) for stage, node in doc.get("r") or []},
        prefix=ids_of(doc, "x"),
        drafts=ids_of(doc, "d"),
        accepted=ids_of(doc, "a"),
    )
    if step.prefix and len(step.prefix) != step.position:
        raise DecodeError(f"{len(step.prefix)} ids before a step from {step.position}")
    if not ids or step.end > step.known:
        raise DecodeError(f"a step from {step.position} to {step.end} of {step.known} known ids")
    if step.drafts and (not step.asks or len(step.drafts) > MOST_DRAFTS):
        raise DecodeError(f"{len(step.drafts)} drafts behind {step.end} of {step.known} known ids")
    if len(step.accepted) > min(step.position, MOST_DRAFTS):
        raise DecodeError(f"{len(step.accepted)} drafts before a step from {step.position}")
    return step


@dataclass(frozen=True, slots=True)
class MissingTokens:
    """The sender of this word holds `have` tokens of a session: send it those from there on."""

    session: str
    have: int


@dataclass(frozen=True, slots=True)
class Holds:
    """A follower holds `have` tokens of a session."""

    session: str
    have: int


@dataclass(frozen=True, slots=True)
class Full:
    """There is no slot for a session."""

    session: str


@dataclass(frozen=True, slots=True)
class Stale:
    """A newer attempt of a session is under way; `epoch` is its number."""

    session: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Token:
    """The id at `index` of a session. finish: `stop`, `length`, or "" if it goes on."""

    session: str
    index: int
    token: int
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """The client of a session is not there any more."""

    session: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The process lives: the answer to a probe."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A stage of a session has gone to another node."""

    session: str
    stage: int
    node: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A session's run failed, and why. status: what the client is told."""

    session: str
    text: str
    status: str = Status.INTERNAL


Word = MissingTokens | Holds | Full | Stale | Token | Gone | Alive | Moved | Failed


def encode_words(node: str, words: Iterable[Word]) -> bytes:
    """One message back. node: who says it."""
    return pack({"v": 1, "node": node, "words": [_word(word) for word in words]})


def decode_words(data: bytes | memoryview) -> tuple[str, list[Word]]:
    """The node that says it, and its words. Raises `DecodeError`."""
    doc = unpack_map(data, MOST_MESSAGE)
    if doc.get("v") != 1:
        raise DecodeError(f"words of version {doc.get('v')!r} are not read; 1 is")
    try:
        return _name(doc["node"]), [_read_word(w) for w in _listed(doc, "words", MOST_STEPS)]
    except InvalidArgument as error:
        raise DecodeError(str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"words: {error!r:.200}") from None


def _listed(doc: dict[str, Any], name: str, most: int) -> Sequence[Any]:
    value = doc.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise DecodeError(f"{name}: a list of at most {most}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 1 << 40:
        raise DecodeError(f"{value!r:.40} is no count")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
        raise DecodeError(f"{value!r:.40} is no name")
    return value


def _subject(value: Any) -> str:
    """Where words go: an inbox. A space in it would be a command to the server."""
    if not isinstance(value, str) or len(value) > 512 or not value.isascii():
        raise DecodeError("back: the subject of an inbox")
    if any(character <= " " or character in "*>" for character in value) or not may_answer(value):
        raise DecodeError("back: the subject of an inbox")
    return value


def _text(most: int, value: Any) -> str:
    if not isinstance(value, str):
        raise DecodeError(f"{value!r:.40} is no text")
    return value[:most]


# By its name on the wire: the word, and what reads each of its fields, in their order.
_WORDS: dict[str, tuple[type[Any], tuple[Callable[[Any], Any], ...]]] = {
    "behind": (MissingTokens, (_name, _count)),
    "holds": (Holds, (_name, _count)),
    "full": (Full, (_name,)),
    "stale": (Stale, (_name, _count)),
    "token": (Token, (_name, _count, _count, partial(_text, 16))),
    "gone": (Gone, (_name,)),
    "alive": (Alive, ()),
    "moved": (Moved, (_name, _count, _name)),
    "failed": (Failed, (_name, partial(_text, 500), partial(_text, 32))),
}
_NAMES = {kind: (name, tuple(kind.__slots__)) for name, (kind, _) in _WORDS.items()}


def _word(word: Word) -> list[Any]:
    name, fields = _NAMES[type(word)]
    if isinstance(word, Failed) and word.status == Status.INTERNAL:  # older nodes know no other
        fields = fields[:-1]
    return [name, *[getattr(word, each) for each in fields]]


def _read_word(item: Any) -> Word:
    match item:
        case [str(name), *values] if name in _WORDS:
            kind, reads = _WORDS[name]
            if len(values) == len(reads) or (kind is Failed and len(values) == 2):
                word: Word = kind(*[read(each) for read, each in zip(reads, values, strict=False)])
                return word
    raise DecodeError(f"an unknown word: {item!r:.100}")
