"""What `watch` adds to other features' commands."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.cli.command import option


@dataclass(frozen=True)
class PageOptions:
    """Of `swarm demo`."""

    dashboard: bool = option(
        False,
        "Show the mesh in a browser too; its nodes and the page stay until Ctrl-C, but in stories "
        "that end by themselves.",
    )
