"""What a feature says about itself to the mesh: the one object `FEATURE` of
`swarm/<name>/feature.py`. What it adds to the programs stands in `nodes/<name>/feature.py`.

Importing `swarm.<name>.feature` starts nothing and imports no library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """All that a feature adds to the mesh; what it leaves out it does not have.

    name: of its rooms. of_mesh(): a subclass of `swarm.client.Client`, whose methods `swarm.Mesh`
    has.
    """

    name: str
    of_mesh: Callable[[], type] | None = None
