"""Which nodes may be reached without the server, from what gossip and status documents say."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import NOWHERE, Placement, nearby
from swarm.fleet.priorities import FALLBACK, PRIMARY, STANDBY
from swarm.model import ModelInfo
from swarm.subjects import ANY

HERE, THERE = "a" * 16, "b" * 16
INFO = ModelInfo("m", "1", (), (), ())
ONE = StagePeer("n1", PRIMARY, HERE, False, "_INBOX.1")
TWO = StagePeer("n2", PRIMARY, HERE, False, "_INBOX.2")
HELP = StagePeer("f", FALLBACK, HERE, False, "_INBOX.f")
peers = st.lists(
    st.builds(
        StagePeer,
        st.sampled_from(["n1", "n2", "n3", "n4"]),
        st.sampled_from([PRIMARY, STANDBY, FALLBACK]),
        st.sampled_from([HERE, THERE, ""]),
        st.booleans(),
        st.sampled_from(["", "_INBOX.1", "_INBOX.2"]),
    ),
    max_size=4,
    unique_by=lambda peer: peer.node,
)


def test_the_shared_lane_leads_to_the_only_primary() -> None:
    assert nearby([ONE], HERE).inboxes[ANY] == "_INBOX.1"
    assert nearby([ONE, HELP], HERE).inboxes[ANY] == "_INBOX.1"
    assert nearby([ONE, replace(TWO, draining=True)], HERE).inboxes[ANY] == "_INBOX.1"


def test_where_the_server_chooses_nobody_is_guessed_at() -> None:
    assert ANY not in nearby([ONE, TWO], HERE).inboxes
    assert ANY not in nearby([HELP], HERE).inboxes, "a primary may be there, not known yet"
    assert ANY not in nearby([ONE, replace(TWO, host=THERE)], HERE).inboxes


def test_a_nodes_own_lane_leads_to_it() -> None:
    found = nearby([ONE, TWO, HELP], HERE).inboxes
    assert (found["n1"], found["n2"]) == ("_INBOX.1", "_INBOX.2")


def test_without_shared_memory_nothing_is_near() -> None:
    assert nearby([ONE, TWO], "") == NOWHERE
    assert nearby([], HERE) == NOWHERE


@given(peers=peers)
def test_no_message_goes_directly_to_another_host_or_to_a_node_without_a_socket(
    peers: list[StagePeer],
) -> None:
    found = nearby(peers, HERE)
    reachable = {p.inbox for p in peers if p.host == HERE and p.inbox}
    assert set(found.inboxes.values()) <= reachable
    assert found.shared == (bool(peers) and all(p.host == HERE for p in peers))


class Scene:
    """A placement, and the nodes that it is told of."""

    def __init__(self, host: str = HERE) -> None:
        self.peers = [ONE]
        self.asked: list[int] = []
        self.placement = Placement(host, self.serving)

    def serving(self, info: ModelInfo, stage: int) -> list[StagePeer]:
        self.asked.append(stage)
        return self.peers


def test_an_answer_is_kept_until_there_is_news() -> None:
    scene = Scene()
    assert scene.placement.at(INFO, 1).shared
    scene.peers = [replace(ONE, host=THERE)]
    assert scene.placement.at(INFO, 1).shared
    assert scene.asked == [1]
    scene.placement.forget()
    assert not scene.placement.at(INFO, 1).shared


def test_the_news_that_nodes_came_or_went_ends_every_answer() -> None:
    scene = Scene()
    assert scene.placement.at(INFO, 1).shared
    before = scene.placement.forgotten
    scene.peers = []
    scene.placement.forget()
    assert scene.placement.forgotten > before, "who keeps an answer sees that it is out of date"
    assert scene.placement.at(INFO, 1) == NOWHERE


def test_each_stage_has_an_answer_of_its_own() -> None:
    scene = Scene()
    for stage in (1, 2, 1):
        scene.placement.at(INFO, stage)
    assert scene.asked == [1, 2]


def test_a_process_that_shares_no_memory_asks_nobody() -> None:
    scene = Scene(host="")
    assert scene.placement.at(INFO, 1) == NOWHERE
    assert scene.asked == []
