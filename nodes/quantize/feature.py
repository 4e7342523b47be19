"""Models with fewer bits, measured."""

from __future__ import annotations

from nodes.feature import Feature

FEATURE = Feature("quantize")
