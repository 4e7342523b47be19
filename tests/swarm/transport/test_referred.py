"""Outputs that stay where they were made: fetched as they were, bounded, released, or gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fake_link import FakeLink

from swarm.errors import DecodeError, NotFound
from swarm.link import LinkMessage
from swarm.model import ModelInfo, Spec, Stage
from swarm.transport.referred import LEAST_BYTES, MOST, MOST_BYTES, Referrals, fetch, release
from swarm.wire.messages import Features
from swarm.wire.tensors import Referred, decode_tensors

PLAIN = SimpleNamespace(code=lambda *_: None)
NO_MEMORY: Any = SimpleNamespace(host="", take=lambda tensors: None)


class ToItself(FakeLink):
    """What a node publishes comes to its own inbox."""

    def __init__(self) -> None:
        super().__init__()
        self.connected = True

    def carry(self, message: LinkMessage) -> None:
        super().carry(message)
        self.deliver(message)


def info() -> ModelInfo:
    spec = (Spec("maps", "FP32", (-1,)),)
    return ModelInfo("m", "1", spec, spec, (Stage(1, ("maps",), ("maps",), 1.0),))


def features(tensors: dict[str, Any], budget: float = 10.0) -> Features:
    return Features("id", "m", "1", 1, "_INBOX.x.1", int(budget * 1e6), tensors, refer=("maps",))


def referrals(link: FakeLink) -> Referrals:
    return Referrals(link, NO_MEMORY, PLAIN)  # type: ignore[arg-type]


def routes(link: FakeLink) -> Any:
    return SimpleNamespace(link=link, lender=NO_MEMORY, codec="none")


def maps(size: int = LEAST_BYTES) -> np.ndarray:
    return np.arange(size // 4, dtype="<f4")


async def test_a_tensor_is_fetched_as_it_was_by_several_until_it_is_released() -> None:
    link = ToItself()
    small = np.ones(3, "<f4")
    kept = referrals(link).keep(features({}), {"maps": maps(), "exit": maps(), "small": small})
    assert kept["exit"] is not kept["maps"]
    assert isinstance(kept["exit"], np.ndarray), "nobody named it"
    assert referrals(link).keep(features({}), {"maps": small})["maps"] is small, "it is small"
    for _ in range(2):
        asked = Features.decode(b"".join(features({"maps": kept["maps"]}).parts()))
        assert asked.refer == ("maps",)
        assert asked.tensors["maps"] == kept["maps"]
        await fetch(routes(link), info(), asked)
        assert asked.tensors["maps"].tobytes() == maps().tobytes()
    release(link, [kept["maps"]])
    with pytest.raises(NotFound, match="input 'maps'"):
        await fetch(routes(link), info(), features({"maps": kept["maps"]}, 0.1))
    assert link.open_replies == 0


async def test_what_is_kept_is_bounded_in_number_bytes_and_time() -> None:
    link = ToItself()
    many = referrals(link)
    kinds = [type(many.keep(features({}), {"maps": maps()})["maps"]) for _ in range(MOST + 1)]
    assert kinds == [Referred] * MOST + [np.ndarray]
    large = referrals(link)
    half = np.zeros(MOST_BYTES // 8, "<f4")
    kinds = [type(large.keep(features({}, 0.02), {"maps": half})["maps"]) for _ in range(3)]
    assert kinds == [Referred, Referred, np.ndarray]
    await asyncio.sleep(0.05)
    assert isinstance(large.keep(features({}), {"maps": half})["maps"], Referred)


@pytest.mark.parametrize("at", ["swarm.m.drain.x", "$JS.API.X", "_INBOX.*", "", 7, None])
def test_nothing_but_an_inbox_is_referred_to(at: object) -> None:
    document = {"datatype": "FP32", "shape": [1], "codec": "referred", "data": at}
    with pytest.raises(DecodeError, match="inbox"):
        decode_tensors({"x": document})


async def test_another_tensor_than_was_referred_to_is_none() -> None:
    link = ToItself()
    kept = referrals(link).keep(features({}), {"maps": maps()})["maps"]
    with pytest.raises(NotFound, match="another tensor"):
        await fetch(routes(link), info(), features({"maps": kept._replace(shape=(1,))}))
