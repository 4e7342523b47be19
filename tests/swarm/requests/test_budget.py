"""Every request ends inside its budget, whatever comes, or does not come, from the mesh."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fake_stage import outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_desk import Message, SimulatedDesk, SimulatedStage, later, now
from support.simulated_time import SimulatedLoop

from swarm.errors import (
    NoResponders,
    PermissionDenied,
    ResourceExhausted,
    Status,
    Unavailable,
)
from swarm.requests.request import DURABLE, FAST
from swarm.subjects import Subjects
from swarm.wire.messages import Features, Result

TICK = 1e-6  # seconds
REFUSALS = [ResourceExhausted("full"), NoResponders("none"), Unavailable("no")]
LATENCIES = st.sampled_from([0.0, 0.001, 0.02, 0.3, 2.0, 20.0])
# What the stage does with one message: nothing, garbage, a failure, an answer that was meant for
# another request, or an answer; each late or at once, and perhaps twice.
ANSWERS = st.tuples(
    st.sampled_from(["silent", "garbage", "another", "right", *Status]), LATENCIES, st.booleans()
)
EVENTS = st.one_of(
    st.sampled_from(["cut", "reconnect", "lose", "lane", "deny", "deaf", "hearing", "close"]),
    st.sampled_from(REFUSALS),
    st.none(),  # no refusals any more
    st.floats(0.001, 3.0),  # the process stands still for so many seconds
)
REQUESTS = st.fixed_dictionaries(
    {
        "budget": st.sampled_from([0.001, 0.01, 0.06, 0.3, 1.0, 5.0, 30.0]),
        "delivery": st.sampled_from([DURABLE, FAST]),
        "hedge": st.sampled_from([None, 0.5, 0.99]),
        "session": st.sampled_from(["", "one"]),
        "weights": st.sampled_from([0, 7]),
    }
)


@dataclass
class Course:
    """What happens to one requester. stops: when its process stood still, from and to."""

    answers: list[tuple[Any, float, bool]]
    stops: list[tuple[float, float]] = field(default_factory=list)
    ended: list[tuple[float, float, Result]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = SimulatedDesk()
        self.desk.stage.behave = self._behave
        self._next = 0

    def _behave(self, stage: SimulatedStage, message: Message, features: Features) -> None:
        what, seconds, twice = self.answers[self._next % len(self.answers)]
        self._next += 1
        for _ in range(1 + twice):
            later(seconds, self._answer, stage, features, what)
        message.done()

    def _answer(self, stage: SimulatedStage, features: Features, what: Any) -> None:
        if what == "garbage":
            stage.say(features, b"\xc1garbage")
        elif what in ("right", "another"):
            stage.reply(features, outcome(features, request_id="x" if what == "another" else ""))
        elif what != "silent":
            stage.fail(features, what)

    def happens(self, event: Any) -> None:
        desk = self.desk
        if isinstance(event, float):
            self.stops.append((now(), now() + event))
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.stop_for(event)
        elif event == "cut":
            desk.server.cut()
        elif event == "reconnect":
            desk.server.reconnect()
        elif event == "lose":
            desk.lanes.lose()
        elif event == "lane":
            desk.lanes.exists = True
        elif event == "deny":
            for denied in list(desk.server.on_denied):
                denied(Subjects("test").fresh("m", "1", 1), PermissionDenied("not there"))
        elif event in ("deaf", "hearing"):
            desk.fast = event == "hearing"
        elif event == "close":
            desk.requester.close()
        else:
            desk.lanes.error = event

    async def ask(self, after: float, options: dict[str, Any]) -> None:
        await asyncio.sleep(after)
        ask = self.desk.ask(**options)
        result = await self.desk.requester.infer(ask)
        self.ended.append((ask.deadline, now(), result))

    def may_end_at(self, deadline: float) -> float:
        """A process that stands still over the deadline ends its requests when it goes on."""
        for began, over in sorted(self.stops):
            if began - TICK <= deadline <= over:
                deadline = over
        return deadline + TICK


@settings(deadline=None, max_examples=100)
@given(
    answers=st.lists(ANSWERS, min_size=1, max_size=8),
    events=st.lists(st.tuples(st.floats(0.0, 8.0), EVENTS), max_size=10),
    requests=st.lists(st.tuples(st.floats(0.0, 5.0), REQUESTS), min_size=1, max_size=12),
)
def test_whatever_comes_each_request_ends_by_its_budget_and_leaves_nothing(
    answers: list[tuple[Any, float, bool]],
    events: list[tuple[float, Any]],
    requests: list[tuple[float, dict[str, Any]]],
) -> None:
    async def play() -> Course:
        course = Course(answers)
        for after, event in events:
            later(after, course.happens, event)
        async with asyncio.timeout(3600.0):
            await asyncio.gather(*(course.ask(after, options) for after, options in requests))
        return course

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        course = runner.run(play())
        assert len(course.ended) == len(requests)
        for deadline, at, result in course.ended:
            assert at <= course.may_end_at(deadline), result.message
            assert isinstance(result.status, Status)
        assert course.desk.is_idle()
        assert course.desk.server.callback_errors == 0
