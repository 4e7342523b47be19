"""Of a node of role `auto`."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.settings import tuning

AUTO = "auto"  # the role whose stages follow from the plan in force


@dataclass(frozen=True)
class AutoOptions:
    """memory: bytes that it gives to stages; 0: what is free."""

    memory: int = tuning(
        0,
        "auto: megabytes of memory that it gives to stages; 0: what is free.",
        unit="MB",
        least=0,
        name="memory_mb",
    )
