"""Plans and guards: what is refused, and with which words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.rollout import BadGuard, parse_guards, parse_plan, plan_of
from swarm.rollout.agreement import agree, parse_agreement
from swarm.routing import BadDesiredState, RequestInfo, parse_desired

PLAN = {"id": "p1", "version": "2", "canary": 10, "step": 10, "every_s": 60.0}


def test_each_guard_is_a_share_of_bad_observations() -> None:
    latency, errors, alike = parse_guards("p99<20ms, errors<1%,agree>0.98")
    assert (latency.measure, latency.allowed, latency.limit) == ("latency", 0.01, 0.02)
    assert (errors.measure, errors.allowed) == ("errors", 0.01)
    assert (alike.measure, alike.allowed) == ("agree", 0.02)
    assert latency.is_bad(0.02, False)
    assert not latency.is_bad(0.019, False)
    assert latency.is_bad(0.001, True)  # a failed request is slower than any limit
    assert not errors.is_bad(9.0, False)


@pytest.mark.parametrize(
    "text",
    [
        "p99",
        "p99<20",
        "p99<20%",
        "p99<0ms",
        "p0<1ms",
        "p100<1ms",
        "p9.9.9<1ms",
        "p99>20ms",
        "errors>1%",
        "errors<2",
        "errors<1ms",
        "agree<0.9",
        "agree>1.5",
        "speed<3",
        "p99<20ms,",
        "p99<20ms,p99<30ms",
        "errors<1%,errors<2%",
        "p<3ms",
        "; drop",
        ",".join(f"p{n}<1s" for n in range(10, 30)),
    ],
)
def test_a_guard_that_does_not_parse_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadGuard) as refused:
        parse_guards(text)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=40))
def test_any_text_is_guards_or_a_refusal(text: str) -> None:
    try:
        guards = parse_guards(text)
    except BadGuard:
        return
    assert parse_guards(",".join(guard.text for guard in guards)) == guards


def test_a_plan_from_the_words_of_a_command_is_the_plan_that_is_stored() -> None:
    plan = plan_of("p1", "2", "10%", "30%/1m", "p99<20ms,agree>0.98", "5%", 20, "relative:0.1")
    assert parse_plan(plan.document()) == plan
    assert (plan.last_step, plan.lasts) == (3, 240.0)  # 10, 40, 70, 100 %


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ({"canary": "0%"}, "above 0"),
        ({"canary": "110%"}, "up to 100"),
        ({"canary": "ten"}, "as 10%"),
        ({"step": "0%/1m"}, "never ends"),
        ({"step": "10%"}, "a share and a time"),
        ({"step": "10%/1"}, "with its unit"),
        ({"step": "10%/1ms"}, "30 days"),
        ({"step": "0.01%/1m"}, "at most 1000"),
        ({"guard": "agree>0.9"}, "--shadow"),
        ({"shadow": "101%"}, "0 to 100"),
        ({"agree": "nearly"}, "relative:0.01"),
        ({"samples": 0}, "from 1"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_its_remedy(
    words: dict[str, object], remedy: str
) -> None:
    good: dict[str, object] = {"id": "p1", "version": "2", "canary": "10%"}
    with pytest.raises(InvalidArgument, match=remedy):
        plan_of(**(good | words))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        PLAN | {"id": "a.b"},
        PLAN | {"version": 2},
        PLAN | {"canary": True},
        PLAN | {"step": float("nan")},
        PLAN | {"every_s": "1m"},
        PLAN | {"guard": 7},
        PLAN | {"samples": 1.5},
        PLAN | {"version": "1"},  # which serves already
    ],
)
def test_desired_state_with_a_broken_plan_is_refused_whole(broken: object) -> None:
    document = {"model": "m", "serve": [{"version": "1", "share": 100}], "rollout": broken}
    with pytest.raises(BadDesiredState, match="rollout"):
        parse_desired(document)


def test_a_growing_share_takes_no_request_back() -> None:
    state = parse_desired(
        {"model": "m", "serve": [{"version": "1", "share": 100}], "rollout": PLAN}
    )
    new: set[str] = set()
    for share in range(0, 101, 10):
        now = {
            agent
            for agent in map(str, range(400))
            if state.version_for(RequestInfo("x", "m", agent=agent), share) == "2"
        }
        assert new <= now
        assert abs(len(now) / 4 - share) < 8
        new = now
    assert len(new) == 400


def test_pins_go_before_shares_and_a_requests_own_version_before_pins() -> None:
    state = parse_desired(
        {
            "model": "m",
            "serve": [{"version": "1", "share": 100}],
            "pins": {"old": "1", "brave": "2"},
            "rollout": PLAN,
        }
    )
    assert state.versions == ("1", "2")
    assert not state.is_the_same_for_all
    assert state.version_for(RequestInfo("x", "m", agent="old"), 100.0) == "1"
    assert state.version_for(RequestInfo("x", "m", agent="brave"), 0.0) == "2"
    assert state.version_for(RequestInfo("x", "m", version="7", agent="old"), 100.0) == "7"


def test_agreement_is_measured_as_the_plan_says() -> None:
    present = {"y": np.array([[1.0, 5.0, 2.0], [0.0, 0.0, 9.0]], np.float32)}
    near = {"y": present["y"] * np.float32(1.005)}
    other = {"y": present["y"][:, ::-1]}
    assert agree(parse_agreement(""), present, near)
    assert not agree(parse_agreement("top-1"), present, other)
    assert agree(parse_agreement("exact"), present, {"y": present["y"].copy()})
    assert not agree(parse_agreement("exact"), present, near)
    assert agree(parse_agreement("relative:0.01"), present, near)
    assert not agree(parse_agreement("relative:0.001"), present, near)
    assert not agree(parse_agreement(""), present, {"z": present["y"]})
    assert not agree(parse_agreement(""), present, {"y": present["y"][:1]})


def test_outputs_that_are_not_finite_agree_with_themselves_alone() -> None:
    odd = {"y": np.array([np.nan, np.inf, 3.0], np.float32)}
    how = parse_agreement("relative:0.01")
    assert agree(how, odd, {"y": odd["y"].copy()})
    assert not agree(how, odd, {"y": np.array([np.nan, 1.0, 3.0], np.float32)})
    assert not agree(how, {"y": np.array([3.0])}, {"y": np.array([np.nan])})
    assert agree(parse_agreement(""), {"n": np.array([[7.0]])}, {"n": np.array([[7.01]])})
