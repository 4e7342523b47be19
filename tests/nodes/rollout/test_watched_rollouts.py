"""What the terminal's page says of a rollout."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.ended import none_turn
from support.waiting import GENEROUS

from nodes.rollout.commands.rollout import RolloutOptions, asked_plan
from nodes.rollout.watched import RolloutWatch
from swarm.errors import InvalidArgument
from swarm.link import LinkMessage
from swarm.models.registry import InForce
from swarm.rollout import Statement, Verdict, plan_of
from swarm.rollout.subjects import RolloutSubjects
from swarm.routing import parse_desired

PLAN = plan_of("01J", "2", "10%", "10%/1m")
SUBJECTS = RolloutSubjects("default")


class Mesh:
    """What a registry says of one model; the page's watch over it."""

    def __init__(self) -> None:
        self.aborted, self.plan, self.reads = "", True, 0
        self.callbacks: dict[str, Any] = {}
        link: Any = SimpleNamespace(
            connected=True,
            grants=SimpleNamespace(may_subscribe=lambda subject: True),
            subscribe=self.subscribe,
            unsubscribe=lambda subject: self.callbacks.pop(subject),
        )
        registry: Any = SimpleNamespace(in_force=self.in_force)
        self.watch = RolloutWatch(link, SUBJECTS, registry, lambda: ["digits"])
        self.read_again = asyncio.Event()

    def subscribe(self, subject: str, callback: Any) -> str:
        self.callbacks[subject] = callback
        return subject

    async def in_force(self, model: str) -> InForce:
        document: dict[str, Any] = {"model": model, "serve": [{"version": "1", "share": 100}]}
        if self.plan:
            document["rollout"] = PLAN.document()
        self.read_again.set()
        return InForce(document, parse_desired(document), 70.0, self.aborted)

    async def line(self) -> str:
        """The line after one reading."""
        reading = asyncio.create_task(self.watch.run())
        await asyncio.wait_for(self.read_again.wait(), GENEROUS)
        await asyncio.sleep(0)  # what was read is told in the next step
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        self.read_again.clear()
        return self.watch.lines(time.monotonic()).get("digits", "")


async def test_a_rollout_is_followed_from_its_judges_words_to_its_end() -> None:
    mesh = Mesh()
    assert "as soon as judges" in await mesh.line()
    statement = Statement(
        judge="j",
        plan="01J",
        ready=True,
        held=70.0,
        verdict=Verdict.GOOD,
        verdicts=(),
        total=(),
        recent=(),
    )
    guards = mesh.callbacks[SUBJECTS.guards_all("digits")]
    guards(LinkMessage("", "", None, b"no statement"))
    guards(LinkMessage(SUBJECTS.guards("digits", "other"), "", None, statement.encode()))
    assert "as soon as judges" in await mesh.line(), "nobody states in another's name"
    guards(LinkMessage(SUBJECTS.guards("digits", "j"), "", None, statement.encode()))
    assert await mesh.line() == "2 rolls out: 20 %, step 2 of 10"
    mesh.aborted = "p99<20ms broke"
    assert await mesh.line() == "2 was rolled back: p99<20ms broke"
    mesh.plan = False
    assert await mesh.line() == ""
    assert mesh.callbacks == {}


async def test_no_loop_of_who_watches_rollouts_turns(tmp_path: Path) -> None:
    loops = {
        "rollouts": lambda client, _: RolloutWatch(
            client.link, client.subjects, client.registry, lambda: ["digits"]
        ).run()
    }
    await none_turn(loops, tmp_path)


def test_options_of_a_rollout_without_its_canary_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match="--guard is for a rollout: add --canary"):
        asked_plan(RolloutOptions(guard="errors<1%"), "2")
    assert asked_plan(RolloutOptions(), "2") is None
