"""The values of the Helm chart in `deploy/kubernetes/swarm` for one model version: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shards.manifest import Manifest

MIB = 1 << 20
# Measured: a node peaks at four times the weights of its stages and 50 MB; the limit is twice that.
LIBRARIES = 64 * MIB
WEIGHTS_REQUESTED, WEIGHTS_LIMIT = 4, 8
LEAST_LIMIT = 768 * MIB


def values(manifest: Manifest, mesh: str, nats: str = "") -> dict[str, Any]:
    """One stage for each shard, with memory for its weights; the fallback has all of them. nats:
    URL of a server outside, "" for one of the chart's own."""
    shards = [shard for shard in manifest.shards if shard.stage > 0]
    document: dict[str, Any] = {
        "mesh": mesh,
        "model": manifest.model,
        "stages": [{"replicas": 1, "resources": _resources([shard.bytes])} for shard in shards],
        "fallback": {"replicas": 1, "resources": _resources([shard.bytes for shard in shards])},
    }
    if nats:
        document["nats"] = {"enabled": False, "url": nats}
    return document


def _resources(weights: Sequence[int]) -> dict[str, Any]:
    total = sum(weights)
    requested = WEIGHTS_REQUESTED * total + LIBRARIES
    limit = max(LEAST_LIMIT, WEIGHTS_LIMIT * total + LIBRARIES)
    return {
        "requests": {"cpu": "500m", "memory": f"{-(-requested // MIB)}Mi"},
        "limits": {"memory": f"{-(-limit // MIB)}Mi"},
    }


def as_yaml(document: Any, indent: int = 0) -> str:
    """Maps, lists, texts and numbers as YAML that people read. Texts are JSON's, which YAML has
    too."""
    space = " " * indent
    lines = []
    for key, value in document.items():
        if isinstance(value, dict):
            lines.append(f"{space}{key}:\n{as_yaml(value, indent + 2)}")
        elif isinstance(value, list):
            items = [as_yaml(item, indent + 4) for item in value]
            marked = [f"{space}  - {item[indent + 4 :]}" for item in items]
            lines.append(f"{space}{key}:\n" + "\n".join(marked))
        else:
            lines.append(f"{space}{key}: {_scalar(value)}")
    return "\n".join(lines)


def _scalar(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'
