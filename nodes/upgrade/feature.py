"""New releases of the node software, on devices, by waves."""

from __future__ import annotations

from nodes.feature import Feature

FEATURE = Feature("upgrade")
