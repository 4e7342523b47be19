"""Which tokens a JSON schema allows: what the last stage needs of a library that knows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np


class Grammar(Protocol):
    """Of one session. Both answers are functions of the tokens alone, so whoever goes on with a
    session needs the schema and the tokens, and nothing else. Both raise `InvalidArgument` where a
    schema turns out to ask for more work than it may."""

    def allowed(self, generated: Sequence[int]) -> np.ndarray:
        """The ids that may follow, ascending."""
        ...

    def is_whole(self, generated: Sequence[int]) -> bool:
        """Whether nothing may follow any more."""
        ...


Grammars = Callable[[str], Grammar]  # by the schema's text; raises `InvalidArgument`
