"""The slots of one stage: who gets one, and what sessions that have ended leave in theirs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from swarm.language.limits import LanguageLimits, Shape
from swarm.language.prefixes import PrefixCopy, Prefixes, PrefixSource
from swarm.language.request import Opening
from swarm.language.session import Session

MOST_ENDED, ENDED_FOR = 4096, 60.0  # sessions that have ended, seconds that they are remembered
PRESSED_AFTER = 5.0  # seconds; a session without news for so long makes room for a new one


class Slots:
    """sessions: of the stage, by key; `open` adds to them. counts: of the stage. drop(key): the
    stage lets go of a session that makes room for another one. leaving: slots of closed sessions
    that a run still writes to."""

    def __init__(
        self,
        shape: Shape,
        limits: LanguageLimits,
        sessions: dict[str, Session],
        counts: Counter[str],
        drop: Callable[[str], None],
    ) -> None:
        self.prefixes = Prefixes(shape.width)
        self.leaving: set[int] = set()
        self._shape, self._limits = shape, limits
        self._sessions, self._counts, self._drop = sessions, counts, drop
        self._copies: list[PrefixCopy] = []
        # By session that has ended: its last attempt, and until when that is remembered.
        self._ended: dict[str, tuple[int, float]] = {}

    def free(self) -> set[int]:
        """Slots that a session may have."""
        taken = {each.slot for each in self._sessions.values()} | self.leaving
        return set(range(self._shape.slots)) - taken

    def open(
        self,
        key: str,
        opening: Opening,
        epoch: int,
        now: float,
        ids: Sequence[int] = (),
        follows: bool = False,
    ) -> tuple[Session | None, str]:
        """A session in a free slot, None where there is none. ids: of its beginning, as much of
        which as another slot holds is copied; and the next stage's node that had that too, "" for
        none. follows: it takes no slot that others may need."""
        spare = max(1, self._shape.slots // 4) + 1
        if follows and len(self.free()) < spare:
            return None, ""
        self.make_room(spare)
        if not self.free():
            idle = min(self._sessions.values(), key=lambda each: each.touched, default=None)
            if idle is None or now - idle.touched < PRESSED_AFTER:
                return None, ""
            self._counts["evicted"] += 1
            self._drop(idle.key)
            if not self.free():
                return None, ""
        self._counts["opened"] += 1
        source, tokens = self.prefixes.longest(ids, self._sessions.values())
        slot = self.prefixes.place(self.free(), source, tokens)
        session = self._sessions[key] = Session(key, opening, epoch, slot, now, follows=follows)
        if source is None:
            return session, ""
        self._share(session, source, list(ids[:tokens]))
        return session, source.to

    def make_room(self, spare: int) -> None:
        """Sessions that are only followed leave so many slots free."""
        followed = [session for session in self._sessions.values() if session.follows]
        followed.sort(key=lambda session: (session.running, session.touched))
        for session in followed[: max(0, spare - len(self.free()))]:
            self._counts["unfollowed"] += 1
            self._drop(session.key)

    def leave(self, session: Session) -> None:
        """A session has left its slot, which keeps what later ones may begin with."""
        if self._limits.reuse:
            self.prefixes.keep(session)
        if session.running:
            self.leaving.add(session.slot)

    # --- beginnings -------------------------------------------------------------------

    def may_begin(self, position: int, prefix: Sequence[int]) -> bool:
        """Whether the KV before a session's first step are here, or there are none."""
        if not self._limits.reuse:
            return not position
        _, tokens = self.prefixes.longest(prefix, self._sessions.values())
        return position == tokens

    def _share(self, session: Session, source: PrefixSource, ids: list[int]) -> None:
        """A session begins with KV of another one."""
        tokens = len(ids)
        self._counts["reused_tokens"] += tokens
        self._copies.append(PrefixCopy(source.slot, session.slot, tokens))
        session.ids, session.announce = ids, True
        session.held = session.sent = session.shared = tokens

    def copies(self) -> list[PrefixCopy]:
        """What is to be copied since the last call, in order, before all runs that follow."""
        found, self._copies = self._copies, []
        return found

    def marks(self) -> bytes:
        """The beginnings that other nodes may send sessions here for."""
        return self.prefixes.told(self._sessions.values()) if self._limits.reuse else b""

    # --- sessions that have ended -----------------------------------------------------

    def remember_end(self, key: str, epoch: int, now: float) -> None:
        """A session has ended with this attempt, or a later one that is remembered."""
        if len(self._ended) >= MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[key] = (max(epoch, self._ended.pop(key, (0, 0.0))[0]), now + ENDED_FOR)

    def ended(self, key: str) -> int:
        """The last attempt of a session that has ended, -1 where none is remembered."""
        return self._ended.get(key, (-1, 0.0))[0]

    def forget_ended(self, now: float) -> None:
        """Those that ended long ago."""
        while self._ended and self._ended[oldest := next(iter(self._ended))][1] <= now:
            del self._ended[oldest]
