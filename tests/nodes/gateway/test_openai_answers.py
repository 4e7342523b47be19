"""Several answers of one request as one stream: what fails is told, not swallowed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from nodes.gateway.openai.answers import together
from swarm.errors import Unavailable
from swarm.generation.client import Generation
from swarm.generation.follow import GeneratedToken


class Failing(Generation):
    """An answer that ends by an error behind one token."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def __aiter__(self) -> AsyncGenerator[GeneratedToken, None]:
        yield GeneratedToken(0, 1, "a")
        raise self.error


@pytest.mark.parametrize("error", [Unavailable("nobody"), ZeroDivisionError("a fault")])
async def test_an_answer_that_fails_fails_all_with_its_own_error(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        async for _ in together([Failing(error)]):
            pass
    assert raised.value is error
