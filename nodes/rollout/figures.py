"""What nodes tell of a rollout as figures."""

from __future__ import annotations

from nodes.figures import FiguresOf, gauge

FIGURES = (
    FiguresOf(
        "rollout",
        {
            "swarm_rollout_share_ratio": gauge(
                "Share of the traffic that a version under rollout gets, as the node sees it.",
                "share",
                unit=100,
            ),
            "swarm_rollout_rolled_back": gauge(
                "1 where the rollout was ended, and the version before serves again.",
                lambda rollout: rollout.get("state") == "rolled-back",
            ),
        },
        labels={"model": "model", "version": "version"},
    ),
)
