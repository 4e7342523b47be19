"""Which model is meant where none is named."""

from __future__ import annotations

import pytest

from nodes.versions.sole_model import sole_model
from swarm.errors import InvalidArgument, NotFound


def test_it_is_the_only_one() -> None:
    assert sole_model(["digits"], "swarm infer {model}") == "digits"


def test_none_is_waited_for_and_several_are_listed_with_the_lines_to_type() -> None:
    with pytest.raises(NotFound, match=r"no model yet.*swarm infer NAME"):
        sole_model([], "swarm infer {model}")
    with pytest.raises(InvalidArgument) as caught:
        sole_model(["a", "b"], "swarm infer {model}")
    assert str(caught.value).splitlines()[1:] == ["  swarm infer a", "  swarm infer b"]
