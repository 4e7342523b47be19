"""A model of a library, and how its answer is compared with ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Row:
    """What a library says of one object, in pixels of the picture. box: left, top, right, bottom.
    points: [k, 2 or 3]. corners: [4, 2]. mask: bool [h, w] of the model's picture. grid: of a whole
    picture. text: of a line."""

    kind: int = 0
    score: float = 1.0
    box: np.ndarray | None = None
    points: np.ndarray | None = None
    corners: np.ndarray | None = None
    mask: np.ndarray | None = None
    grid: np.ndarray | None = None
    text: str = ""


Answer = Callable[[np.ndarray], list[Row]]


@dataclass(frozen=True)
class Case:
    """build: writes the file into a folder, for weights that find something in a picture, and gives
    the library's own answer. kind: of the task. options: what its owner has to say. own_size:
    whether the picture has the model's size, so that two ways to resize do not count. picture: to
    be asked about, where it is no noise."""

    name: str
    kind: str
    build: Callable[[Path, np.ndarray], tuple[Path, Answer]]
    options: Mapping[str, Any] = field(default_factory=dict)
    own_size: bool = False
    picture: Callable[[], np.ndarray] | None = None
