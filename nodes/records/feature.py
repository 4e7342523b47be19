"""What was asked, by hashes or whole, and running it again."""

from __future__ import annotations

from nodes.feature import Feature

FEATURE = Feature("records")
