"""Which stages this node shall serve, as its planning decides and its versions carry out."""

from __future__ import annotations

from collections.abc import Callable


class AutoPlaces:
    """`stages` and `failed` are for `nodes.versions.versions.Versions`; the rest is for planning.

    on_change(): the versions shall look. on_failed(version, stage, error): a stage could not be
    loaded.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_failed: Callable[[str, int, Exception], None] = lambda version, stage, error: None
        self._wanted: dict[str, frozenset[int]] = {}

    def stages(self, version: str) -> frozenset[int] | None:
        """Those of a version that this node shall serve; None while nothing is decided."""
        return self._wanted.get(version)

    def failed(self, version: str, stage: int, error: Exception) -> None:
        """A stage could not be loaded: nothing more is wanted of the version for now."""
        self._wanted.pop(version, None)
        self.on_failed(version, stage, error)

    def want(self, version: str, stages: frozenset[int]) -> None:
        """Serve these stages of a version, and no others."""
        if self._wanted.get(version) != stages:
            self._wanted[version] = stages
            self.on_change()

    def forget(self, version: str) -> None:
        """The version is served no more."""
        self._wanted.pop(version, None)
