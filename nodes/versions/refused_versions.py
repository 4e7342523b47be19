"""The versions that the mesh desires and this node cannot run: why, and when it tries again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

AGAIN_AFTER, AGAIN_AFTER_AT_MOST = 10.0, 320.0  # seconds; each attempt costs a whole loading


@dataclass(frozen=True, slots=True)
class _Refused:
    reason: str
    pause: float  # seconds behind the last attempt
    due_at: float


class RefusedVersions:
    """`now` in seconds, of one clock. An attempt is due after `AGAIN_AFTER`, then after twice as
    long each time, and at once when the desired state has changed."""

    def __init__(self) -> None:
        self._refused: dict[str, _Refused] = {}

    def __contains__(self, version: object) -> bool:
        return version in self._refused

    def refuse(self, version: str, reason: str, now: float) -> None:
        """An attempt to load this version has failed."""
        before = self._refused.get(version)
        pause = AGAIN_AFTER if before is None else min(2 * before.pause, AGAIN_AFTER_AT_MOST)
        self._refused[version] = _Refused(reason, pause, now + pause)

    def is_due(self, version: str, now: float) -> bool:
        """Whether to load this version: it was never refused, or long enough ago."""
        refused = self._refused.get(version)
        return refused is None or now >= refused.due_at

    def served(self, version: str) -> None:
        """This version is served here."""
        self._refused.pop(version, None)

    def forget_all_but(self, wanted: Collection[str]) -> None:
        """Forget the versions that are not wanted any more."""
        self._refused = {v: refused for v, refused in self._refused.items() if v in wanted}

    def retry_all(self) -> None:
        """The desired state has changed: try all of them again."""
        self._refused.clear()

    def reason(self, version: str) -> str:
        """Why this version is not served here; "" where it was not refused."""
        refused = self._refused.get(version)
        return "" if refused is None else refused.reason

    @property
    def reasons(self) -> dict[str, str]:
        """By version."""
        return {version: refused.reason for version, refused in self._refused.items()}
