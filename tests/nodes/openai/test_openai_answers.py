"""Several answers of one request as one stream: what fails is told, not swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from nodes.openai.answers import begun, together
from swarm.errors import Internal, InvalidArgument, ResourceExhausted, SwarmError, Unavailable
from swarm.language.client import Generation
from swarm.language.follow import GeneratedToken
from swarm.language.request import GenerateRequest


class Failing(Generation):
    """An answer that ends by an error behind one token."""

    def __init__(self, error: Exception) -> None:
        self.request = GenerateRequest()
        self.error = error

    async def __aiter__(self) -> AsyncGenerator[GeneratedToken, None]:
        yield GeneratedToken(0, 1, "a")
        raise self.error


class Whole(Generation):
    """An answer of two tokens."""

    def __init__(self) -> None:
        self.request = GenerateRequest()

    async def __aiter__(self) -> AsyncGenerator[GeneratedToken, None]:
        yield GeneratedToken(0, 1, "a")
        yield GeneratedToken(1, 2, "b", finish="length")


@pytest.mark.parametrize("error", [Unavailable("nobody"), ZeroDivisionError("a fault")])
async def test_an_answer_that_fails_fails_all_with_its_own_error(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        async for _ in together([Failing(error)]):
            pass
    assert raised.value is error


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize(
    "error", [InvalidArgument("prompt: 9"), Internal("a fault"), ResourceExhausted("too long")]
)
async def test_an_answer_of_eight_that_fails_by_its_own_fault_ends_alone(
    error: SwarmError, place: int
) -> None:
    answers = [Failing(error) if at == place else Whole() for at in range(8)]
    heard: dict[int, list[object]] = {at: [] for at in range(8)}
    async for said in together(answers):
        assert said is not None
        at, found = said
        heard[at].append(found if isinstance(found, SwarmError) else found.text)
    assert heard.pop(place) == ["a", error]
    assert list(heard.values()) == [["a", "b"]] * 7


@pytest.mark.parametrize(
    "error", [Unavailable("nobody"), ResourceExhausted("full", 1.0), ZeroDivisionError("a fault")]
)
async def test_what_may_be_asked_again_fails_all_of_eight(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        async for _ in together([*(Whole() for _ in range(7)), Failing(error)]):
            pass
    assert raised.value is error


async def test_where_all_fail_the_request_fails() -> None:
    error = InvalidArgument("prompt: 9")
    with pytest.raises(InvalidArgument):
        async for _ in together([Failing(error) for _ in range(8)]):
            pass


class Room:
    """A mesh with so many slots. most: that were held at a time."""

    def __init__(self, slots: int) -> None:
        self.slots, self.held, self.most = slots, 0, 0


class Seated(Generation):
    """An answer of two tokens, for which there has to be a slot."""

    def __init__(self, room: Room) -> None:
        self.request = GenerateRequest()
        self._room = room

    def begin_anew(self, budget: float) -> None:
        assert 0 < budget <= self.request.budget

    async def __aiter__(self) -> AsyncGenerator[GeneratedToken, None]:
        room = self._room
        if room.held == room.slots:
            raise ResourceExhausted("no slot is free", 60.0)
        room.held += 1
        room.most = max(room.most, room.held)
        try:
            await asyncio.sleep(0)
            yield GeneratedToken(0, 1, "a")
            await asyncio.sleep(0)
            yield GeneratedToken(1, 2, "b", finish="length")
        finally:
            room.held -= 1


@pytest.mark.parametrize("slots", [1, 4, 15, 16])
async def test_more_answers_than_a_client_has_slots_come_in_turns(slots: int) -> None:
    room = Room(slots)
    heard: dict[int, str] = {}
    tokens = together([Seated(room) for _ in range(16)])
    first = await begun(tokens, 16)
    assert 0 < len(first) <= 2 * slots, "the others wait for their turn"
    for at, found in first:
        heard[at] = heard.get(at, "") + str(found.text)  # type: ignore[union-attr]
    async for said in tokens:
        if said is not None:
            heard[said[0]] = heard.get(said[0], "") + str(said[1].text)  # type: ignore[union-attr]
    assert heard == dict.fromkeys(range(16), "ab")
    assert room.most == slots


async def test_where_no_answer_finds_a_slot_the_request_is_refused() -> None:
    with pytest.raises(ResourceExhausted, match="no slot"):
        await begun(together([Seated(Room(0)) for _ in range(16)]), 16)
