"""Which of a source's pictures `--rate` lets through. Pure."""

from __future__ import annotations

EARLY = 0.25  # of the pause between two, by which a picture may come before it is due


class Thinning:
    """At most `rate` pictures a second, evenly; 0: each."""

    def __init__(self, rate: float) -> None:
        self._pause = 1 / rate if rate else 0.0
        self._due: float | None = None

    def takes(self, moment: float) -> bool:
        """Whether a picture of this moment goes on, in seconds of the source's clock. The mean rate
        is held where pictures come unevenly; a pause is not made up for."""
        if not self._pause:
            return True
        due = self._due
        # A clock that goes back begins anew.
        if due is None or moment < due - 2 * self._pause:
            due = moment
        if moment < due - EARLY * self._pause:
            return False
        self._due = max(due + self._pause, moment)
        return True
