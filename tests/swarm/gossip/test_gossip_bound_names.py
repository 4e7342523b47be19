"""Where the server binds a node's name to its user: what names that a member makes up can do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swarm.gossip import LAN, Effect, Event, Gossip, GossipRequest, Send

Make = Callable[..., Gossip]
Deliver = Callable[..., list[tuple[str, Event]]]
ROUND = LAN.interval
NAMES_A_ROUND = 10  # that the liar makes up for each node
MANY = 3 * LAN.user_nodes


@pytest.fixture
def honest(make: Make) -> dict[str, Gossip]:
    nodes = {name: make(name) for name in ("shard-1-a", "shard-2-a", "shard-3-a")}
    for gossip in nodes.values():
        gossip.bind_users(True)
        for name in nodes:
            if name != gossip.node:
                gossip.add_peer(name)
    return nodes


def comes_to(liar: Gossip, victim: Gossip, now: float) -> list[Effect]:
    """A whole exchange, by which a node of this name gets known. Returns what the victim does."""
    liar.set("role", "shard-1", 0.0)
    liar.add_peer(victim.node)
    [question] = [e for e in liar.tick(0.0) if isinstance(e, GossipRequest)]
    answer, effects = victim.on_request(question.payload, now)
    assert answer is not None
    for more in liar.on_reply(question.token, answer, 0.0):
        if isinstance(more, Send):
            effects += victim.on_request(more.payload, now)[1]
    return effects


class Flood:
    """Questions under many names to all honest nodes, each round; `lives`: they all answer."""

    def __init__(
        self, make: Make, deliver: Deliver, honest: dict[str, Gossip], user: str, lives: bool
    ) -> None:
        self._make, self._deliver, self._lives = make, deliver, lives
        self.honest, self.user = honest, user
        self.nodes = dict(honest)  # all that answer
        self.made = self.round = 0
        self.sent: list[int] = []  # requests of the first honest node in each round

    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            now = self.round * ROUND
            for name in list(self.honest):
                gossip = self.honest[name]
                effects = gossip.tick(now)
                for _ in range(NAMES_A_ROUND):
                    self.made += 1
                    liar = self._make(f"{self.user}-{self.made}")
                    liar.bind_users(True)
                    effects += comes_to(liar, gossip, now)
                    if self._lives:
                        self.nodes[liar.node] = liar
                if name == "shard-1-a":
                    self.sent.append(sum(isinstance(e, GossipRequest) for e in effects))
                self._deliver(self.nodes, name, effects, now)
            self.round += 1

    def known(self, at: str = "shard-1-a") -> list[str]:
        view = self.honest[at].view(self.round * ROUND)
        return [node for node in view if node.startswith(f"{self.user}-")]


def test_of_one_user_few_nodes_are_known_whatever_it_makes_up(
    make: Make, deliver: Deliver, honest: dict[str, Gossip]
) -> None:
    flood = Flood(make, deliver, honest, "bad", lives=True)
    flood.go_on(MANY // NAMES_A_ROUND // len(honest) + 1)
    for name, gossip in honest.items():
        assert flood.made > MANY
        assert len(flood.known(name)) == LAN.user_nodes
        assert gossip.counters["user_full"] > 0
        now = flood.round * ROUND
        assert {n for n in honest if gossip.view(now)[n].state == "alive"} == set(honest)


def test_without_bound_names_only_the_table_bounds_them(make: Make) -> None:
    gossip = make("shard-1-a")
    for number in range(MANY):
        gossip.tick(number * ROUND)
        comes_to(make(f"bad-{number}"), gossip, number * ROUND)
    assert len(gossip.view(MANY * ROUND)) == 1 + MANY


def test_made_up_names_of_another_user_do_not_keep_its_new_node_out(
    make: Make, deliver: Deliver, honest: dict[str, Gossip]
) -> None:
    flood = Flood(make, deliver, honest, "shard-2", lives=False)
    flood.go_on(8)
    newcomer = make("shard-2-new")
    newcomer.bind_users(True)
    for name in honest:
        newcomer.add_peer(name)
    flood.honest["shard-2-new"] = flood.nodes["shard-2-new"] = newcomer
    flood.go_on(20)
    assert all(len(flood.known(name)) <= LAN.user_nodes for name in honest)
    now = flood.round * ROUND
    for name in ("shard-1-a", "shard-3-a"):
        assert honest[name].view(now)["shard-2-new"].state == "alive", name
        assert honest[name].view(now)["shard-2-a"].state == "alive", name


@pytest.mark.parametrize(("user", "lives"), [("bad", True), ("shard-2", False)])
def test_what_is_sent_on_their_account_is_a_few_questions_a_round(
    make: Make, deliver: Deliver, honest: dict[str, Gossip], user: str, lives: bool
) -> None:
    flood = Flood(make, deliver, honest, user, lives)
    flood.go_on(12)
    most = LAN.fanout + LAN.user_checks + LAN.reprobes + 2  # a seed, and one of the dead
    assert max(flood.sent[4:]) <= most


def test_answers_of_a_round_are_bounded_and_go_on_in_the_next_one(make: Make) -> None:
    gossip = make("shard-1-a")
    for number in range(7):
        gossip.set(f"key-{number}", "x" * 1000, 0.0)
    asker = make("asker-1")
    asker.add_peer("shard-1-a")
    # Its window shows that it knows nothing, so it is told all.
    [hello] = [e for e in asker.tick(0.0) if isinstance(e, GossipRequest)]

    def answered(now: float) -> int:
        told, _ = gossip.on_request(hello.payload, now)
        assert told is not None
        return len(told)

    gossip.tick(0.0)
    sizes = [answered(0.0) for _ in range(200)]
    assert sizes[0] > 7000
    assert sum(sizes) <= LAN.answer_bytes + LAN.message_bytes + 200 * 100
    assert sizes[-1] < 100, "that we live is said all the same"
    gossip.tick(ROUND)
    assert answered(ROUND) == sizes[0]
