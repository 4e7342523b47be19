"""Decisions as tables: of all rules, the first one that holds decides. Pages show the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Facts = TypeVar("Facts")
Step = TypeVar("Step")


@dataclass(frozen=True, slots=True)
class DecisionRule(Generic[Facts, Step]):
    """A row of a table. when, does: for people. holds and step are functions of the facts alone."""

    when: str
    holds: Callable[[Facts], bool]
    does: str
    step: Callable[[Facts], Step]


def decide(rules: Iterable[DecisionRule[Facts, Step]], facts: Facts) -> Step:
    """By the first rule that holds; the last rule of a table always does."""
    for rule in rules:
        if rule.holds(facts):
            return rule.step(facts)
    raise AssertionError("a table ends with a rule that always holds")
