"""An outage: who waits for its end, and who is refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.requests.admission import AdmissionConfig, Outage, Sends

SECONDS = st.floats(0, 100, allow_nan=False)


def test_without_an_outage_every_request_is_let_through() -> None:
    assert Outage().admit(0.0, 5.0) is Sends.UNTIL_ANSWERED


def test_a_budget_that_is_longer_than_the_outage_waits_for_its_end() -> None:
    outage = Outage()
    outage.begin(10.0)
    assert outage.admit(3.0, 12.9) is Sends.UNTIL_ANSWERED
    assert outage.admit(30.0, 39.9) is Sends.UNTIL_ANSWERED


def test_a_shorter_budget_is_refused_but_for_one_probe_in_a_while() -> None:
    outage = Outage()
    outage.begin(10.0)
    times = [11.0 + step * 0.01 for step in range(100)]
    sends = [outage.admit(0.3, now) for now in times]
    assert Sends.UNTIL_ANSWERED not in sends
    assert 3 <= sends.count(Sends.ONCE) <= 1 / AdmissionConfig().probe_every + 1
    outage.end()
    assert {outage.admit(0.0, now) for now in times} == {Sends.UNTIL_ANSWERED}


@given(st.lists(SECONDS, min_size=1), SECONDS, SECONDS)
def test_an_outage_lasts_from_the_first_request_that_found_no_lane(
    sent: list[float], budget: float, later: float
) -> None:
    outage = Outage()
    for at in sent:
        outage.begin(at)
    assert outage.since == min(sent)
    now = min(sent) + later
    if budget > now - min(sent):
        assert outage.admit(budget, now) is Sends.UNTIL_ANSWERED
