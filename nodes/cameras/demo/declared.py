"""The option `swarm demo --camera`."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.cli.command import option


@dataclass(frozen=True)
class CameraStory:
    """Of `swarm demo`."""

    camera: bool = option(
        False,
        "Another story: a camera that sends H.264, an edge with a gate, and answers held against "
        "the camera's truth.",
    )
