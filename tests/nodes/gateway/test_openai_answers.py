"""Several answers of one request as one stream: what fails is told, not swallowed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from nodes.gateway.openai.answers import together
from swarm.errors import Internal, InvalidArgument, ResourceExhausted, SwarmError, Unavailable
from swarm.generation.client import Generation
from swarm.generation.follow import GeneratedToken


class Failing(Generation):
    """An answer that ends by an error behind one token."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def __aiter__(self) -> AsyncGenerator[GeneratedToken, None]:
        yield GeneratedToken(0, 1, "a")
        raise self.error


class Whole(Generation):
    """An answer of two tokens."""

    def __init__(self) -> None:
        pass

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
    async for at, found in together(answers):
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
