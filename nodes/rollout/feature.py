"""A new version by steps of traffic, under guards."""

from __future__ import annotations

from nodes.feature import Feature

FEATURE = Feature("rollout")
