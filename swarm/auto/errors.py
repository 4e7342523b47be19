"""Errors of plans.

InvalidArgument (swarm.errors)
└── BadPlan     a plan in force with problems: refused as a whole
"""

from __future__ import annotations

from swarm.errors import InvalidArgument


class BadPlan(InvalidArgument):
    """A document that is no plan; the nodes go by the one before."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"plan refused: {reason}")
        self.reason = reason
