"""Other settings of handing over, for one test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.transport.handover import policy


def change_handover(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Senders that are made from now on have these settings."""
    monkeypatch.setattr(policy, "HANDOVER", replace(policy.HANDOVER, **values))
