"""The options of `swarm demo --learn`."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.cli.command import option, seldom


@dataclass(frozen=True)
class LearnStory:
    """Of `swarm demo`."""

    learn: bool = option(
        False,
        "Another story: eight nodes with two or three digits each learn all ten, while the "
        "pipeline serves what they learn; of 60 seconds, at 50 images a second.",
    )
    picture: str = seldom(
        "swarm-demo-learn.png",
        "With --learn: the PNG of the plot, where matplotlib is installed; empty: none.",
    )
