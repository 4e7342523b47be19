"""The newest revision of each key that a process has seen or heard of. Pure.

In a cluster any server that has a copy answers a read, and one may be some milliseconds behind the
leader: a process that has stored a value, or heard of a change, could read what was there before.
"""

from __future__ import annotations

MOST_KEYS = 4096  # of a process; beyond them all are forgotten, and reads may be behind


class Revisions:
    """Revisions by the subject that a key is read by."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def heard(self, key: str, revision: int) -> None:
        """The key has this revision, or a newer one."""
        if revision > self._newest.get(key, 0):
            if len(self._newest) >= MOST_KEYS:
                self._newest.clear()
            self._newest[key] = revision

    def is_behind(self, key: str, revision: int) -> bool:
        """Whether the key has a newer revision than the one that was read."""
        return revision < self._newest.get(key, 0)

    def forget(self, key: str) -> None:
        """What was heard was wrong, or the server has lost it."""
        self._newest.pop(key, None)
