"""Which nodes may be reached without the server, from what gossip and status documents say."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import NOWHERE, near
from swarm.priorities import FALLBACK, PRIMARY, STANDBY
from swarm.subjects import ANY

HERE, THERE = "a" * 16, "b" * 16
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
    assert near([ONE], HERE).inboxes[ANY] == "_INBOX.1"
    assert near([ONE, HELP], HERE).inboxes[ANY] == "_INBOX.1"
    assert near([ONE, replace(TWO, draining=True)], HERE).inboxes[ANY] == "_INBOX.1"


def test_where_the_server_chooses_nobody_is_guessed_at() -> None:
    assert ANY not in near([ONE, TWO], HERE).inboxes
    assert ANY not in near([HELP], HERE).inboxes, "a primary may be there, not known yet"
    assert ANY not in near([ONE, replace(TWO, host=THERE)], HERE).inboxes


def test_a_nodes_own_lane_leads_to_it() -> None:
    found = near([ONE, TWO, HELP], HERE).inboxes
    assert (found["n1"], found["n2"]) == ("_INBOX.1", "_INBOX.2")


def test_without_shared_memory_nothing_is_near() -> None:
    assert near([ONE, TWO], "") == NOWHERE
    assert near([], HERE) == NOWHERE


@given(peers=peers)
def test_no_message_goes_directly_to_another_host_or_to_a_node_without_a_socket(
    peers: list[StagePeer],
) -> None:
    found = near(peers, HERE)
    reachable = {p.inbox for p in peers if p.host == HERE and p.inbox}
    assert set(found.inboxes.values()) <= reachable
    assert found.shared == (bool(peers) and all(p.host == HERE for p in peers))
