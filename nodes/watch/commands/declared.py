"""`swarm top`, `dashboard`, `profile` and `metrics-exporter`, and their options.

Each imports its work when it runs, so that `swarm --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nodes.cli.command import Ran, argument, option, seldom
from nodes.cli.options import MODEL, SOLE_MODEL, Input, SignedTarget, Target


@dataclass(frozen=True)
class ProfileOptions:
    """Of `swarm profile`."""

    seconds: float = option(30.0, "How long to look, in seconds.", min=1)
    probes: float = seldom(
        2.0,
        "Traced requests a second of this command's own, beside live traffic; 0: none.",
        min=0,
        max=100,
    )
    input: Input = ""
    plot: str = option("", "Write a figure to this .png or .svg.")


@dataclass(frozen=True)
class DashboardOptions:
    """Of `swarm dashboard`."""

    host: str = option("127.0.0.1", "Address to serve the page at; others than loopback need TLS.")
    port: int = option(8321, "Port of the page; 0 takes a free one.", min=0, max=65535)
    https_cert: str = seldom("", "PEM file of the certificate with which the page is served.")
    https_key: str = seldom("", "PEM file of the key of --https-cert.")
    open_http: bool = seldom(False, "Serve others than this machine without TLS: all may read.")
    allow_actions: bool = option(
        False,
        "Let who has the printed address drain nodes, promote and roll back, with this "
        "command's credentials; without it the page is only read.",
    )


@dataclass(frozen=True)
class PageOptions:
    """Of `swarm demo`."""

    dashboard: bool = option(
        False,
        "Show the mesh in a browser too; its nodes and the page stay until Ctrl-C, but in stories "
        "that end by themselves.",
    )


def top(
    target: Target,
    once: bool = seldom(False, "Show it once, as `swarm status` does."),
    plain: bool = seldom(False, "A table without keys, as where textual is missing."),
) -> Ran:
    """Show the fleet live, until q: nodes, stages, rates, latencies, events. s sorts, / filters,
    Enter shows a node, e all events. With --json once, as --once does."""
    from nodes.watch.commands.top import run_top

    return run_top(target, once, plain)


def dashboard(options: DashboardOptions, target: SignedTarget) -> Ran:
    """Show the fleet on one page, live, in any number of browsers, until Ctrl-C."""
    from nodes.watch.commands.dashboard import run_dashboard

    return run_dashboard(options, target)


def profile(
    options: ProfileOptions,
    target: Target,
    model: Annotated[str, MODEL] = argument("", SOLE_MODEL, metavar="[MODEL]"),
) -> Ran:
    """Where a model's milliseconds go under live traffic, stage by stage, and what to do next.

    It sends requests of its own too, of random values or of --input."""
    from nodes.watch.commands.profile import run_profile

    return run_profile(model, options, target)


def metrics_exporter(
    target: Target,
    port: str = option("9464", "PORT, for this machine alone, or ADDRESS:PORT, for Prometheus."),
    most_nodes: int = seldom(1000, "Nodes that are told of at a time.", min=1, max=100000),
) -> Ran:
    """Serve the figures of the whole fleet to Prometheus, from status subjects, until Ctrl-C."""
    from nodes.watch.commands.exporter import run_exporter

    return run_exporter(port, most_nodes, target)


OPTIONS = {"demo": [PageOptions]}
