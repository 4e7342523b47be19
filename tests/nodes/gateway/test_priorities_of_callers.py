"""What a gateway's callers may ask before others: their priority, its bound, their share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nodes.gateway.access.callers import AnyCallers, ListedCallers
from nodes.gateway.access.rules import hash_of
from nodes.gateway.call import Caller, InferCall
from nodes.gateway.hand import BytesInHand
from nodes.gateway.inference import Inference
from nodes.gateway.parameters import request_of
from swarm.errors import BadKey, InvalidArgument, PermissionDenied, ResourceExhausted
from swarm.wire.messages import Request, Result

KEY = "swk_" + "k" * 43
PEER = "192.0.2.7"


def caller(folder: Path, *lines: str) -> Caller:
    """A caller whose block has these lines."""
    path = folder / "callers.toml"
    block = ["[[key]]", 'agent = "robot"', f'sha256 = "{hash_of(KEY).hex()}"', *lines]
    path.write_text("\n".join(block) + "\n", encoding="utf-8")
    path.chmod(0o600)
    return ListedCallers(str(path)).of({"x-api-key": KEY}, PEER)


def asked(who: Caller, priority: Any = "", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    parameters = {"priority": priority} if priority != "" else {}
    return request_of({}, (), who, parameters, named, id="", version="")


@pytest.mark.parametrize(
    ("lines", "named", "priority"),
    [
        ((), "", ""),
        ((), "low", "low"),
        ((), "normal", "normal"),
        ((), 0, ""),
        (('priority = "high"',), "", "high"),
        (('priority = "high"',), "low", "low"),
        (('priority = "low"',), "", "low"),
        (('priority = "low"',), "normal", "normal"),
        (('most_priority = "high"',), "", ""),
        (('most_priority = "high"',), 1, "high"),
        (('priority = "low"', 'most_priority = "low"'), 0, "low"),
    ],
)
def test_a_request_has_the_priority_that_it_names_or_that_of_its_caller(
    tmp_path: Path, lines: tuple[str, ...], named: Any, priority: str
) -> None:
    assert asked(caller(tmp_path, *lines), named).priority == priority


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ((), "high"),
        ((), 1),
        (('priority = "low"',), "high"),
        (('priority = "low"', 'most_priority = "low"'), "normal"),
    ],
)
def test_a_priority_above_that_of_a_caller_is_refused_and_not_lowered(
    tmp_path: Path, lines: tuple[str, ...], named: Any
) -> None:
    with pytest.raises(PermissionDenied, match="agent 'robot' may ask with priority"):
        asked(caller(tmp_path, *lines), named)


def test_the_header_goes_before_the_parameter() -> None:
    assert asked(Caller(), "low", swarm_priority="high").priority == "high"
    with pytest.raises(InvalidArgument, match="low, normal or high"):
        asked(Caller(), "low", swarm_priority="soon")


def test_where_nobody_is_listed_everybody_may_ask_anything() -> None:
    assert asked(AnyCallers().of({}, PEER), "high").priority == "high"


def test_a_caller_has_the_share_that_is_given_to_it(tmp_path: Path) -> None:
    assert asked(caller(tmp_path, "share = 3")).share == 3.0
    assert asked(caller(tmp_path)).share == 0.0


@pytest.mark.parametrize(
    "line",
    [
        'priority = "soon"',
        "priority = 1",
        "priority = []",
        "priority = {}",
        'most_priority = "HIGH"',
        'priority = "high"\nmost_priority = "normal"',
        "share = -1",
        "share = nan",
        "share = inf",
        'share = "3"',
        "share = true",
        "share = 1e9",
    ],
)
def test_a_block_that_says_it_wrongly_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadKey, match=r"\[\[key\]\] 1: (most_)?(priority|share) = "):
        caller(tmp_path, line)


def test_blocks_of_one_agent_may_not_differ(tmp_path: Path) -> None:
    other = '[[certificate]]\nname = "r"\nagent = "robot"\npriority = "low"'
    with pytest.raises(BadKey, match="another standing"):
        caller(tmp_path, other)


async def test_a_full_gateway_has_room_for_high_requests_and_not_for_any_number() -> None:
    ended = asyncio.Event()

    async def answer(model: str, request: Request) -> Result:
        await ended.wait()
        return Result("id", model)

    inference = Inference(answer, 8, BytesInHand(1 << 20))

    def ask(priority: str) -> asyncio.Task[Result]:
        inputs = {"x": np.zeros(1, np.float32)}
        return asyncio.create_task(
            inference.run(InferCall("m", Request(inputs, priority=priority)))
        )

    let_in = [ask("") for _ in range(8)]
    await asyncio.sleep(0)
    for priority in ("", "low", "normal"):
        with pytest.raises(ResourceExhausted, match="8 requests are in flight"):
            await ask(priority)
    let_in += [ask("high"), ask("high")]
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="10 requests are in flight"):
        await ask("high")
    ended.set()
    assert len(await asyncio.gather(*let_in)) == 10
