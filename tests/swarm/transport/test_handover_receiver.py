"""Parcels that processes of this host hand over, beside copies that lanes bring minutes later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contract import Counts

from swarm.samehost.compact import features_parts
from swarm.samehost.lending import NO_LOAN
from swarm.transport.api import Admission
from swarm.transport.handover.acks import ACK, NAK, PASSED_ON
from swarm.transport.handover.receiver import (
    COPY_COMES_WITHIN,
    LAST_HANDED_OUT,
    MOST_KNOWN,
    STALE_AFTER,
    HandoverDelivery,
    HandoverReceiver,
)
from swarm.transport.lane import LaneMessage
from swarm.wire.messages import Features

NOW = 1_000_000_000_000  # ns


class Keeper:
    """A lane that keeps every message until it is settled."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, bytes]] = []
        self.held: list[int] = []

    def age(self, message: LaneMessage) -> float:
        return 0.0

    def has(self, message: LaneMessage) -> bool:
        return message.sequence not in dict(self.ended)

    def release_credit(self, message: LaneMessage, at_ns: int) -> None:
        self.held.append(message.sequence)

    def take_credit(self, message: LaneMessage) -> None:
        self.held.remove(message.sequence)

    def end(self, message: LaneMessage, verb: bytes) -> bool:
        first = self.has(message)
        self.ended.append((message.sequence, verb))
        return first


class Desk:
    """Where acks and dead letters go."""

    def __init__(self) -> None:
        self.tally = Counts()
        self.acks: list[tuple[str, bytes]] = []
        self.buried: list[str] = []

    def now_ns(self) -> int:
        return NOW

    def acknowledge(self, reply: str, verb: bytes, behind_answer: bool) -> None:
        self.acks.append((reply, verb))

    def dead_letter(self, data: bytes, reason: str) -> None:
        self.buried.append(reason)


class Post:
    """A receiver, and what it takes."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.keeper = Keeper()
        self.taken: list[HandoverDelivery] = []
        self.admission = Admission.ADMITTED
        self.asked = 0  # times that the lanes were asked for all that waits in them
        self.sequence = 0
        lender: Any = SimpleNamespace(give_back=lambda tensors, but: None, done=lambda opened: None)
        desk: Any = self.desk
        self.receiver = HandoverReceiver(
            desk,
            lender,
            lambda features: features.stage == 2,
            lambda: self.admission,
            self.ask_lanes,
            self.taken.append,
        )

    def ask_lanes(self) -> None:
        self.asked += 1

    def features(self, name: str, attempt: int = 1) -> Features:
        tensors = {"x": np.zeros((1, 4), np.float32)}
        return Features(name, "m", "1", 2, "_INBOX.requester", 1_000_000, tensors, attempt)

    def hand(self, name: str, ago: int = 0, attempt: int = 1) -> None:
        """A process hands a parcel over, `ago` nanoseconds ago."""
        data = b"".join(features_parts(self.features(name, attempt), NO_LOAN))
        self.receiver.receive(data, NOW - ago, f"ack.{name}")

    def copy(self, name: str, after: int = 0, attempt: int = 1) -> tuple[LaneMessage, bool]:
        """The lane hands out a copy, `after` nanoseconds from now; whether it was joined."""
        self.sequence += 1
        message = LaneMessage(
            self.keeper,
            f"$JS.ACK.S.C.1.{self.sequence}.{self.sequence}.0.0",
            b"",
            NOW + after,
        )
        return message, self.receiver.join(message, self.features(name, attempt))


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.mark.parametrize(("passed_on", "word"), [(True, PASSED_ON), (False, ACK)])
def test_the_end_of_the_work_is_told_to_the_sender_once(
    post: Post, passed_on: bool, word: bytes
) -> None:
    post.hand("a")
    [taken] = post.taken
    assert (post.receiver.in_hand, taken.ended) == (1, False)
    for _ in range(3):
        taken.ack(passed_on)
    assert taken.withdraw() or taken.ended
    assert post.desk.acks == [("ack.a", word)]
    assert (post.receiver.in_hand, taken.ended) == (0, True)


def test_a_parcel_that_is_given_back_is_its_senders_and_its_copy_is_new_work(post: Post) -> None:
    post.hand("a")
    post.taken[0].hand_back()
    assert post.desk.acks == [("ack.a", NAK)]
    assert post.copy("a")[1] is False
    assert post.receiver.in_hand == 0


def test_a_copy_takes_over_the_end_of_its_parcel(post: Post) -> None:
    post.hand("a")
    [taken] = post.taken
    copy, joined = post.copy("a")
    assert joined
    assert not copy.ended
    assert post.receiver.in_hand == 0, "the lane counts it from now on"
    assert taken.ack(False)
    assert copy.ended
    assert post.desk.acks == [], "its sender heard that the lane has it"


@pytest.mark.parametrize("end", ["hand_back", "dead_letter"])
def test_a_copy_that_is_given_up_is_the_lanes_again_or_a_dead_letter(post: Post, end: str) -> None:
    post.hand("a")
    [taken] = post.taken
    copy, _ = post.copy("a")
    if end == "hand_back":
        taken.hand_back()
    else:
        taken.dead_letter("poison")
    assert copy.ended
    assert post.desk.buried == ([] if end == "hand_back" else ["poison"])
    assert post.keeper.ended[0][1].startswith(b"-NAK" if end == "hand_back" else b"+TERM")


def test_a_parcel_whose_result_another_process_has_takes_no_credit_when_its_copy_comes(
    post: Post,
) -> None:
    post.hand("a")
    post.taken[0].release_credit()
    copy, _ = post.copy("a")
    assert post.keeper.held == [copy.sequence]
    post.taken[0].take_credit()
    assert post.keeper.held == []


def test_a_copy_of_another_attempt_is_another_message(post: Post) -> None:
    post.hand("a")
    assert post.copy("a", attempt=2)[1] is False


def test_an_id_that_is_used_again_much_later_is_another_request(post: Post) -> None:
    post.hand("a")
    post.taken[0].ack(False)
    assert post.copy("a", after=2 * COPY_COMES_WITHIN)[1] is False


def test_a_parcel_that_lay_in_the_socket_for_long_may_be_another_nodes_by_now(post: Post) -> None:
    post.hand("a", ago=2 * STALE_AFTER)
    assert (post.taken, post.desk.acks) == ([], [("ack.a", NAK)])


def test_a_parcel_that_finds_no_room_is_refused_and_may_come_again(post: Post) -> None:
    post.admission = Admission.REFUSED
    post.hand("a")
    post.admission = Admission.ADMITTED
    post.hand("a")
    assert post.desk.acks == [("ack.a", NAK)]
    assert len(post.taken) == post.desk.tally.taken == 1


def test_lanes_are_asked_only_where_a_parcel_is_taken_past_their_messages(post: Post) -> None:
    for admission in (Admission.REFUSED, Admission.ADMITTED, Admission.BEHIND_LANES):
        post.admission, asked = admission, int(admission is Admission.BEHIND_LANES)
        post.hand(admission.name)
        assert post.asked == asked
    assert len(post.taken) == 2


def test_a_parcel_is_refused_whose_copy_was_handed_out_lately_and_no_other(post: Post) -> None:
    for number in range(2 * LAST_HANDED_OUT):
        post.copy(str(number))
    post.hand(str(2 * LAST_HANDED_OUT - 1))
    assert post.taken == []
    post.hand("0")
    assert len(post.taken) == 1, "so long ago is not remembered"


def test_parcels_that_are_not_done_fill_a_receiver_and_one_that_is_done_makes_room(
    post: Post,
) -> None:
    for number in range(MOST_KNOWN + 1):
        post.hand(str(number))
    assert len(post.taken) == post.receiver.in_hand == MOST_KNOWN
    assert post.desk.acks == [(f"ack.{MOST_KNOWN}", NAK)]
    post.taken[0].ack(True)
    post.hand("more")
    assert len(post.taken) == MOST_KNOWN + 1


def test_after_a_lost_connection_copies_are_new_work(post: Post) -> None:
    post.hand("a")
    post.receiver.clear()
    assert post.copy("a")[1] is False


def test_a_receiver_gives_back_all_parcels_that_are_worked_on(post: Post) -> None:
    for name in "abc":
        post.hand(name)
    post.taken[0].ack(True)
    post.receiver.hand_back()
    assert sorted(post.desk.acks[1:]) == [("ack.b", NAK), ("ack.c", NAK)]
    assert post.receiver.in_hand == 0
