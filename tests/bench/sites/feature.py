"""`swarm bench site`."""

from __future__ import annotations

from bench.commands import Told
from bench.feature import Feature
from nodes.cli.command import option


def site(
    tell: Told,
    cut: str = option("60s", "How long the link is away."),
    requests: int = option(1000, "Half of them while it is away.", min=8),
    agents: int = option(4, "Who submit, in turn.", min=1, max=64),
    silent: bool = option(False, "Silent instead of cut."),
    flap: bool = option(False, "Cut for one second of each five instead."),
) -> int:
    """What a site submits while its link to the hub is cut: each answer once, in order, right."""
    from bench.sites.site import SITE_CUT, SitePlan
    from nodes.console import duration

    plan = SitePlan(duration(cut), requests, agents, silent, flap)
    return tell.run(SITE_CUT, plan)


FEATURE = Feature((site,))
