"""What a stage sends behind to nodes that follow its sessions: what the next stage has. Pure.

A follower computes the same chunks into a slot of its own, sends nothing on, and says how far it
is. Nobody waits for it: the sender keeps the hidden states anyway, and is never further ahead of
what the follower said than `MOST_AHEAD`. When the next stage's node dies, the follower lacks what
came since, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from swarm.language.choice import SlotCandidate, choose
from swarm.language.session import Chunk, Session, Stream

MOST_AHEAD = 2 << 20  # bytes on their way to one follower
SILENT_AFTER = 1.0  # seconds without a word of a follower that has something to say
REST = 3.0  # seconds until a session that lost its follower looks for one


@dataclass(frozen=True, slots=True)
class FollowerChunk:
    """A chunk for a follower."""

    node: str
    session: Session
    chunk: Chunk


def due(
    sessions: Iterable[Session], nodes: Iterable[SlotCandidate], avoid: Collection[str], now: float
) -> Iterator[FollowerChunk]:
    """What is to be sent to followers now. nodes: of the next stage."""
    able = [e for e in nodes if e.follows and not e.draining and e.node not in avoid]
    names, ahead = {each.node for each in able}, Counter[str]()
    served = [session for session in sessions if not session.follows]
    for session in served:
        stream = session.stream
        if stream is None:
            continue
        if stream.node not in names or stream.node == session.to:
            session.stream = None
        elif stream.sent > stream.held and now - stream.at > SILENT_AFTER:
            rest(session, now)
        else:
            ahead[stream.node] += stream.ahead
    for session in served:
        if session.stream is None and session.to and session.kept.chunks and now >= session.rests:
            others = [each for each in able if each.node != session.to]
            if node := choose(session.key, others, ()):
                start = session.kept.start
                session.stream = Stream(node, start, start, now)
        if session.stream is not None:
            yield from _due(session, session.stream, ahead, now)


def _due(
    session: Session, stream: Stream, ahead: Counter[str], now: float
) -> Iterator[FollowerChunk]:
    if session.kept.start > stream.sent:  # it is too slow: what it lacks is not kept any more
        rest(session, now)
        return
    for chunk in session.kept.since(stream.sent):
        size, waits = chunk.rows.nbytes, stream.sent > stream.held
        # Who has said nothing yet gets one chunk: perhaps it has all, or no slot.
        if chunk.end > session.sent or (waits and not stream.heard):
            return
        if ahead[stream.node] and ahead[stream.node] + size > MOST_AHEAD:
            return
        stream.at = stream.at if waits else now
        stream.sent, stream.row = chunk.end, size // len(chunk.rows)
        ahead[stream.node] += size
        yield FollowerChunk(stream.node, session, chunk)


def said(session: Session, node: str, held: int, now: float) -> None:
    """A follower says how many tokens of a session it holds."""
    stream = session.stream
    if stream is None or stream.node != node:
        return
    if held < session.kept.start:
        rest(session, now)
        return
    lost = held < stream.held
    stream.heard, stream.at, stream.held = True, now, held
    stream.sent = held if lost else max(stream.sent, held)


def rest(session: Session, now: float) -> None:
    """A session has no follower for a while."""
    session.stream, session.rests = None, now + REST
