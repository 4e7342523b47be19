"""Traces of the requests that a node answers, where its settings name a collector."""

from __future__ import annotations

from nodes.config import NodeConfig
from swarm.tracing.tracer import Tracer


def tracer_of(config: NodeConfig, node: str) -> Tracer | None:
    """None where no collector is named: OpenTelemetry is not imported then. Raises
    `InvalidArgument`."""
    if not config.otlp:
        return None
    from swarm.tracing.otel import OtlpTracer

    about = {"service.instance.id": node, "swarm.mesh": config.mesh, "swarm.role": config.role}
    return OtlpTracer(config.otlp, config.trace_share, "swarm-node", about)
