"""All parsers, by name."""

from __future__ import annotations

from bench.hostile import fleet_targets, link_targets, message_targets, model_targets, trust_targets
from bench.hostile.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (link_targets, message_targets, fleet_targets, trust_targets, model_targets)
    for target in module.TARGETS
}


def shares(messages: int, names: list[str]) -> dict[str, int]:
    """How many of the messages each of these parsers gets; one at least."""
    total = sum(TARGETS[name].share for name in names)
    return {name: max(1, round(messages * TARGETS[name].share / total)) for name in names}
