"""The tokens of language models that a caller of a gateway may use stand in the callers' file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.gateway.access.callers import ListedCallers
from swarm.errors import BadKey


def test_a_block_names_the_tokens_that_an_agent_may_use_in_a_second(tmp_path: Path) -> None:
    path = tmp_path / "callers.toml"
    path.touch(0o600)
    path.write_text('[[certificate]]\nname = "robot 7"\nagent = "robot-7"\ntokens = 50\n')
    assert ListedCallers(str(path)).of({}, "", "robot 7").quotas == {"tokens": 50.0}
    path.write_text(path.read_text().replace("50", "-1"))
    with pytest.raises(BadKey, match="tokens of prompts and answers a second"):
        ListedCallers(str(path))
