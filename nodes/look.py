"""The seam by which a feature looks at the requests of a stage."""

from __future__ import annotations

from typing import Any, Protocol


class Look(Protocol):
    """What looks at each request of a stage, behind its run and in the run's thread."""

    def looked(self, received: Any, sent: Any) -> dict[str, Any]:
        """Fields of its hop. Raises InputError for a request that is refused."""
        ...

    def status(self) -> dict[str, list[dict[str, Any]]]:
        """Lists of a status document."""
        ...
