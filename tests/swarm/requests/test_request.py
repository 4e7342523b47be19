"""What is asked, and what is said of a request that fails."""

from __future__ import annotations

import pytest
from fake_stage import INFO

from swarm.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, Status, SwarmError
from swarm.requests.request import DURABLE, Ask


def test_each_request_has_an_id_of_its_own_and_is_durable() -> None:
    one, other = Ask(INFO, {}, 1.0), Ask(INFO, {}, 1.0)
    assert one.id != other.id
    assert one.delivery == DURABLE
    assert one.hedge is None


@pytest.mark.parametrize(
    ("error", "retry_after"),
    [
        (ResourceExhausted("too many wait", 0.25), 0.25),
        (DeadlineExceeded("too late"), 0.0),
        (InvalidArgument("a wrong shape"), 0.0),
    ],
    ids=["full", "late", "wrong"],
)
def test_a_request_that_fails_says_why_in_which_attempt_and_when_to_come_back(
    error: SwarmError, retry_after: float
) -> None:
    ask = Ask(INFO, {}, 1.0, id="r")
    failed = ask.failed(error, attempt=2)
    assert (failed.id, failed.model, failed.version) == ("r", INFO.model, INFO.version)
    assert (failed.status, failed.message) == (error.status, str(error))
    assert (failed.attempt, failed.retry_after) == (2, retry_after)
    assert failed.status is not Status.OK


def test_a_request_that_was_never_sent_had_no_attempt() -> None:
    assert Ask(INFO, {}, 1.0).failed(ResourceExhausted("too many wait")).attempt == 0
