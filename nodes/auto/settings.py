"""Of a node of role `auto`."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.settings import tuning

AUTO = "auto"  # the role whose stages follow from the plan in force


@dataclass(frozen=True)
class AutoOptions:
    """memory: bytes that it gives to stages; 0: what is free. memory_pool: whose nodes give them
    together."""

    memory: int = tuning(
        0,
        "auto: megabytes of memory that it gives to stages; 0: what is free.",
        unit="MB",
        least=0,
        name="memory_mb",
    )
    memory_pool: str = tuning(
        "",
        "auto: nodes of this host with the same NAME share --memory-mb, whatever their models. "
        "Empty: what is free is shared by the host's nodes, and --memory-mb by nobody.",
    )
