"""A session never goes back: the highest weight version that each session has seen.

Nodes take new weights within moments of each other. A session whose requests meet one node and then
another would see an older version behind a newer one. So each of its requests asks for no less than
the highest version that an answer named. Bounded: the sessions longest unused are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_SESSIONS = 4096

Session = tuple[str, str, str, str]  # model, version, agent, session


class SeenWeights:
    """Weight versions by session. A session of the base's weights alone takes no place."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._seen: OrderedDict[Session, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def least(self, session: Session) -> int:
        """The weight version below which the session's next answer must not be."""
        return self._seen.get(session, 0)

    def saw(self, session: Session, weights: int) -> None:
        """An answer was computed with this weight version."""
        if not weights:
            return
        self._seen[session] = max(weights, self._seen.get(session, 0))
        self._seen.move_to_end(session)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
