"""A composition that is run again is the one that ran: what was first is first, what was left out
is left out."""

from __future__ import annotations

from typing import Any

import pytest
from support.compositions import RICH

from nodes.compose.again import as_it_was
from shards.compose.composition import FirstPart, from_toml

ONE, OTHER = "aa" * 32, "bb" * 32


@pytest.mark.parametrize(
    ("steps", "of"),
    [
        ({}, ("small", "large")),
        ({"small": ONE, "large": OTHER, "fast": ONE}, ("small",)),
        ({"small": ONE, "large": OTHER, "fast": OTHER}, ("large",)),
        ({"large": OTHER, "fast": OTHER}, ("large",)),
        ({"small": ONE, "large": ONE, "fast": ONE}, ("small",)),
        ({"small": "", "large": "", "fast": ""}, ("small", "large")),
        ({"small": ONE, "fast": OTHER}, ("small", "large")),
    ],
)
def test_what_was_first_is_known_by_what_it_made(steps: dict[str, str], of: Any) -> None:
    composition = from_toml(RICH)
    first = as_it_was(composition, steps).parts["fast"]
    assert isinstance(first, FirstPart)
    assert first.of == of
