"""`swarm bench gateway`, `oip`; its parsers are attacked by `hostile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.commands import Rounds, Told
from bench.feature import Feature
from nodes.cli.command import option

if TYPE_CHECKING:
    from bench.hostile.target import Target


def gateway(
    tell: Told,
    requests: int = option(300, "In one slice of one way.", min=8),
    rounds: Rounds = 5,
    faults: int = option(
        0, "Instead: what tritonclient sees of kill -9 and restarts, so many times each.", min=0
    ),
    rivals: bool = option(False, "Beside mosec and Ray Serve, too: installs half a gigabyte."),
    crowd: bool = option(False, "Instead: memory and errors under 100 connections; slow senders."),
) -> int:
    """What a gateway's clients wait longer than a client of the mesh; beside bare uvicorn."""
    if faults:
        from bench.gateway.faults import FAULTS_SEEN, FaultsPlan

        return tell.run(FAULTS_SEEN, FaultsPlan(trials=faults))
    if crowd:
        from bench.gateway.crowd import CROWD, CrowdPlan

        return tell.run(CROWD, CrowdPlan(rounds=rounds))
    from bench.gateway.gateway import GATEWAY, GatewayPlan

    return tell.run(GATEWAY, GatewayPlan(requests, rounds, rivals=rivals))


def oip(
    examples: Annotated[Path, typer.Option(help="A folder with Triton's simple_*.py.")], tell: Told
) -> int:
    """Triton's client examples, unmodified, against a gateway: their exit codes."""
    from bench.gateway.conformance import CONFORMANCE, ConformancePlan

    return tell.run(CONFORMANCE, ConformancePlan(examples))


def _targets() -> tuple[Target, ...]:
    from bench.gateway.targets import TARGETS

    return TARGETS


FEATURE = Feature((gateway, oip), _targets)
