"""A session never goes back: the highest weight version that each session has seen.

Nodes take new weights within moments of each other. A session whose requests meet one node and then
another would see an older version behind a newer one. So each of its requests asks for no less than
the highest version that an answer named. Bounded: the sessions longest unused are forgotten.

An answer may name a version that does not exist: a faulty node's, or a hostile one's. No other node
would ever serve the session. So three requests in a row that ended for want of these weights void
the version: for ten minutes, no session of that model version asks for it, or for a newer one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_SESSIONS = 4096
MOST_DOUBTED = 256  # model versions
FAILURES = 3  # requests in a row; each waits for the weights for as long as its budget lasts
DOUBTED_FOR = 600.0  # seconds; honest nodes agree within one

Session = tuple[str, str, str, str]  # model, version, agent, session
ModelVersion = tuple[str, str]


class SeenWeights:
    """Weight versions by session. A session of the base's weights alone takes no place.

    now: seconds of `clock`, the present where it is left out.
    """

    def __init__(
        self, most: int = MOST_SESSIONS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._clock = clock
        self._seen: OrderedDict[Session, int] = OrderedDict()
        self._failures: dict[Session, int] = {}  # of sessions in `_seen`
        self._doubted: OrderedDict[ModelVersion, tuple[int, float]] = OrderedDict()  # until when

    def __len__(self) -> int:
        return len(self._seen)

    def least(self, session: Session, now: float | None = None) -> int:
        """The weight version below which the session's next answer must not be."""
        weights = self._seen.get(session, 0)
        if weights and self._doubted and self._is_doubted(session[:2], weights, now):
            return 0
        return weights

    def saw(self, session: Session, weights: int, now: float | None = None) -> None:
        """An answer was computed with this weight version."""
        if not weights or (self._doubted and self._is_doubted(session[:2], weights, now)):
            return
        known = self._seen.get(session, 0)
        if self._doubted and self._is_doubted(session[:2], known, now):
            known = 0
        self._seen[session] = max(weights, known)
        self._seen.move_to_end(session)
        self._failures.pop(session, None)
        if len(self._seen) > self._most:
            forgotten, _ = self._seen.popitem(last=False)
            self._failures.pop(forgotten, None)

    def lacked(self, session: Session, asked: int, now: float | None = None) -> None:
        """A request of the session ended without an answer, for want of weights from `asked` on.
        Nothing is doubted where the session has seen other weights than those."""
        if not asked or asked != self._seen.get(session):
            return
        count = self._failures[session] = self._failures.get(session, 0) + 1
        if count < FAILURES:
            return
        del self._seen[session], self._failures[session]
        self._doubted[session[:2]] = (asked, self._moment(now) + DOUBTED_FOR)
        self._doubted.move_to_end(session[:2])
        if len(self._doubted) > MOST_DOUBTED:
            self._doubted.popitem(last=False)

    def _is_doubted(self, version: ModelVersion, weights: int, now: float | None) -> bool:
        doubted = self._doubted.get(version)
        return doubted is not None and weights >= doubted[0] and self._moment(now) < doubted[1]

    def _moment(self, now: float | None) -> float:
        return self._clock() if now is None else now
