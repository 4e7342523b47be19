"""The smallest manifest that a registry takes."""

from __future__ import annotations

import json
from typing import Any


def manifest(version: str, model: str = "m", **extra: Any) -> bytes:
    """Of one stage that hands its input on."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1]}
    shard = {"stage": 1, "receives": [tensor], "sends": [tensor], "compute_ms": 1.0}
    doc = {"model": model, "version": version, "inputs": [tensor], "outputs": [tensor]}
    return json.dumps(doc | {"shards": [shard]} | extra).encode()
