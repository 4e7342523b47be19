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
    chaos: float = option(0.0, "Instead: seconds of the faults of `bench chaos`.", min=0),
    signals: str = option("KILL,STOP,TERM", "Those of --chaos, separated by commas."),
    every: str = option("1.5s", "Time between two faults of --chaos."),
    seed: int = option(1, "Of the faults of --chaos."),
) -> int:
    """Compositions beside the same models asked by hand: latency, bytes, kill -9, chaos."""
    from bench.compose.chaos import Chaos
    from bench.compose.compose import COMPOSE, ComposePlan
    from bench.faults.chaos_schedule import Kind
    from nodes.console import duration

    names = tuple(only.split(","))
    try:
        kinds = [Kind[name] for name in signals.split(",")]
    except KeyError as error:
        known = ", ".join(Kind.__members__)
        raise ValueError(f"--signals {error.args[0]}: there are {known}") from None
    faults = Chaos(chaos, duration(every), seed, kinds)
    plan = ComposePlan(names, requests, rounds, duration(delay), kills, ultraface, faults)
    return tell.run(COMPOSE, plan)


FEATURE = Feature((compose,))
