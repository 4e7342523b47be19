"""The settings of an edge with cameras."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nodes.settings import check, setting

camera = partial(setting, "camera")


@dataclass(frozen=True)
class CameraOptions:
    """Raises `InvalidArgument`."""

    def __post_init__(self) -> None:
        check(self)
