"""What people watch: figures for Prometheus, the dashboard, the terminal's page, profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Commands, Feature, MissingExtra, Watched, later

if TYPE_CHECKING:
    from nodes.health.endpoint import Pages


def _pages(node: Watched) -> Pages:
    try:
        from nodes.watch.metrics.families import Families, NodeStatus, figures
    except ModuleNotFoundError as error:
        text = f"--metrics-port: {error}: pip install 'swarm-mesh[metrics]'"
        raise MissingExtra(text) from None

    def collect() -> Families:
        status, families = node.status(), Families()
        families.add(NodeStatus(status["node"], status, status["state"]))
        return families

    return figures(collect)


COMMANDS: Commands = {
    "See": {
        "top": "nodes.watch.commands.top:top",
        "dashboard": "nodes.watch.commands.dashboard:dashboard",
        "profile": "nodes.watch.commands.profile:profile",
        "metrics-exporter": "nodes.watch.commands.exporter:metrics_exporter",
    }
}
FEATURE = Feature(
    "watch",
    extras={"prometheus_client": "metrics", "starlette": "dashboard", "textual": "top"},
    pages=_pages,
    commands=COMMANDS,
    options={"demo": ["nodes.watch.settings:PageOptions"]},
    companions=later("nodes.watch.companions:companions"),
)
