"""What a feature does beside the nodes of a local mesh, in a run of `swarm up` or `swarm demo`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh
    from shards.manifest import Manifest

Line = tuple[str, str]  # its title, and what people paste


class Companion:
    """A method that a feature leaves out does nothing. The methods are called in this order.

    serves: its nodes serve the model, in place of a node for each stage. stays: people look at the
    mesh of a demo through it, until Ctrl-C.
    """

    serves = False
    stays = False

    async def split(self, split: Callable[[str], Awaitable[Path]]) -> None:
        """Before the mesh is there. split: makes the folder of a further model, uncut. Raises
        `SwarmError`."""

    async def prepare(self, local: LocalMesh) -> Sequence[str]:
        """The model is pushed, and no node is started: returns further flags of all nodes."""
        return ()

    def start(self, local: LocalMesh, model: str, flags: Sequence[str]) -> None:
        """Start nodes of its own. flags: of all nodes. Raises `OSError`."""

    def asked(self) -> Manifest | None:
        """What people ask in place of the model, once all is prepared; None: nothing else."""
        return None

    async def opened(self, local: LocalMesh, model: str) -> None:
        """All nodes are ready: wait until people may use what was started. Raises `Unavailable`."""

    def document(self, local: LocalMesh) -> dict[str, Any]:
        """Fields of the line that `--json` prints then."""
        return {}

    def lines(self, local: LocalMesh, manifest: Manifest) -> Sequence[Line]:
        """How people use it."""
        return ()
