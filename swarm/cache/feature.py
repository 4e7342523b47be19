"""What nodes tell of the answers that they keep."""

from __future__ import annotations

from swarm.feature import MeshFeature

FEATURE = MeshFeature("cache", status="swarm.cache.status")
