"""Who gets a stage's messages first: the lowest number that has a pull parked."""

from __future__ import annotations

PRIMARY, STANDBY, FALLBACK = 0, 1, 2
