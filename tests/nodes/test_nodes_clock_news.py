"""Who tells that a server's clock was set."""

from __future__ import annotations

from typing import Any

from nodes.versions.clock_news import QUIET, ClockNews
from swarm.clock import ClockStep
from swarm.fleet.advertised import StagePeer
from swarm.fleet.priorities import FALLBACK, PRIMARY
from swarm.model import ModelInfo, Spec, Stage

SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 0.01),), batchable=True)


class Node:
    def __init__(self, name: str, peers: list[StagePeer]) -> None:
        self.now = 100.0
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.news = ClockNews(
            name,
            lambda info, stage: peers,
            lambda kind, detail: self.told.append((kind, detail)),
            lambda: self.now,
        )


def peer(name: str, priority: int = PRIMARY) -> StagePeer:
    return StagePeer(name, priority, "host", False)


def test_the_first_primary_of_the_stage_tells_and_names_the_server() -> None:
    peers = [peer("a", FALLBACK), peer("c"), peer("b")]
    nodes = {name: Node(name, peers) for name in "abc"}
    for node in nodes.values():
        node.news.stepped(INFO, 1, ClockStep("n1", -5.0004))
    assert [name for name, node in nodes.items() if node.told] == ["b"]
    [(kind, detail)] = nodes["b"].told
    assert kind == "clock-stepped"
    words = "the clock of server n1 went back by 5.0 s"
    assert detail == {"server": "n1", "seconds": -5.0, "detail": words}


def test_a_node_tells_of_a_step_once_for_all_its_lanes_and_of_another_server_besides() -> None:
    node = Node("a", [peer("a")])
    for stage in (1, 2, 3):
        node.news.stepped(INFO, stage, ClockStep("n1", 600.0 + stage / 100))
    node.news.stepped(INFO, 1, ClockStep("n2", 600.0))
    assert [detail["server"] for _, detail in node.told] == ["n1", "n2"]
    node.news.stepped(INFO, 1, ClockStep("n1", -600.0))
    node.now += QUIET
    node.news.stepped(INFO, 1, ClockStep("n1", -600.0))
    assert [detail["seconds"] for _, detail in node.told] == [600.01, 600.0, -600.0, -600.0]


def test_a_node_that_gossip_does_not_know_yet_tells_itself() -> None:
    node = Node("a", [])
    node.news.stepped(INFO, 1, ClockStep("n1", 5.0))
    assert len(node.told) == 1
