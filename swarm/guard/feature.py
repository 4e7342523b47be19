"""Guards: how far requests are from a model's calibration data."""

from __future__ import annotations

from swarm.feature import MeshFeature

FEATURE = MeshFeature("guard", status="swarm.guard.status")
