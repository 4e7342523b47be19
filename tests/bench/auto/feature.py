"""`swarm bench auto`, `churn`, `plan --predict`."""

from __future__ import annotations

from bench import commands
from bench.commands import Told, numbers_of
from bench.feature import Feature
from nodes.cli.command import option


def churn(
    tell: Told,
    devices: int = option(40, "Nodes of role auto.", min=2, max=2000),
    minutes: float = option(20.0, "Of virtual time.", min=1.0),
    pace: float = option(1.0, "Times the usual churn a device.", min=0.1),
    seed: int = option(1, "Of the simulation."),
) -> int:
    """Plans of a fleet that changes all the time, simulated: moves, slots, what a look costs."""
    from bench.auto.churn import CHURN, ChurnPlan

    return tell.run(CHURN, ChurnPlan(devices, minutes, pace, seed))


def auto(
    tell: Told,
    nodes: int = option(0, "Nodes of role auto; 0: 6, with fade 4.", min=0, max=32),
    memory: int = option(60, "Megabytes that each gives to stages."),
    rate: float = option(0.0, "Requests a second; 0: 30, cut: 15, fade: 2.", min=0.0),
    events: str = option(
        "join,leave,kill-two",
        "In this order; also kill-one, pause-two, slow (a quarter of a core), fade; or "
        "cut: the network, in two halves, for 30 s.",
    ),
    draw: int = option(0, "Instead: so many events by chance."),
    seed: int = option(1, "Of --draw."),
) -> int:
    """Nodes that share stages by themselves: one joins, one leaves, two die, under load."""
    from bench.auto.auto import AUTO, AutoPlan, drawn
    from bench.auto.cutting import CUT, CutPlan

    if events == "cut":
        return tell.run(CUT, CutPlan(nodes or 6, memory, rate or 15.0))
    nodes = nodes or (4 if "fade" in events else 6)
    happen = drawn(seed, draw, nodes) if draw else tuple(events.split(","))
    rate = rate or (2.0 if "fade" in happen else 30.0)
    plan = AutoPlan(nodes, memory=memory, rate=rate, events=happen)
    return tell.run(AUTO, plan)


def plan(
    tell: Told,
    model: str = option("mobilenet", "mobilenet, resnet50."),
    links_: str = option("", "Mbit/s/ms/percent lost, as 20/10/0,5/50/0.", "--links"),
    rounds: int = option(9, "Requests of each way, in turns.", min=2),
    codec: str = option("auto", "none, or auto, which loses nothing."),
    predict: str = option(
        "", "Instead: random plans, as 1-20, predicted and measured on parts of a core."
    ),
) -> int:
    """Where to compute: every cut on nine links, and an edge's choice beside the best (root)."""
    if not predict:
        return commands.plan(tell, model, links_, rounds, codec)
    from bench.auto.predicting import PREDICTED, PredictPlan

    first, _, last = predict.partition("-")
    numbers = numbers_of(f"{first},{last or first}", "--predict")
    return tell.run(PREDICTED, PredictPlan(*numbers))


FEATURE = Feature((auto, churn, plan))
