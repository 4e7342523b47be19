"""`swarm bench compose`."""

from __future__ import annotations

from bench.commands import Rounds, Told
from bench.feature import Feature
from nodes.cli.command import option


def compose(
    tell: Told,
    only: str = option("hop,cascade,faces,views", "Scenes, separated by commas."),
    requests: int = option(60, "Of one way in one round.", min=1),
    rounds: Rounds = 5,
    delay: str = option("5ms", "Of the far client, each way."),
    kills: int = option(12, "kill -9 of nodes, in turn; 0: none.", min=0),
    ultraface: str = option("", "UltraFace's ONNX file, of the scene `faces`."),
) -> int:
    """Compositions beside the same models asked by hand: latency, bytes, kill -9."""
    from bench.compose.compose import COMPOSE, ComposePlan
    from nodes.console import duration

    names = tuple(only.split(","))
    plan = ComposePlan(names, requests, rounds, duration(delay), kills, ultraface)
    return tell.run(COMPOSE, plan)


FEATURE = Feature((compose,))
