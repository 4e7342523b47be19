"""Who gets a stage's messages first: the lowest number that has a pull parked."""

from __future__ import annotations

PRIMARY, STANDBY, FALLBACK = 0, 1, 2
RESERVE = 3  # of a standby that has taken a stage, at its other stages
