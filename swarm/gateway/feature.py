"""The doors for HTTP and gRPC."""

from __future__ import annotations

from swarm.feature import MeshFeature

FEATURE = MeshFeature("gateway", status="swarm.gateway.status")
