"""Whether two manifests tell of the same version: of equal files that are used alike.

A manifest also says when it was made, how long its stages took, and how exact they were found. Who
splits a file a second time measures something else, and has the same version.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

MEASURED = ("created",)  # fields of the manifest that differ with each time that it is made
ALLOWED = ("codecs", "result_codecs")  # names with measured errors: the names count


def same_version(one: bytes, other: bytes) -> bool:
    """Whether two manifests, JSON, describe equal contents under one name and version."""
    return one == other or _content(one) == _content(other)


def same_content(one: bytes, other: bytes) -> bool:
    """As `same_version`, of manifests that may have different versions."""
    return _content(one, version=False) == _content(other, version=False)


def content_digest(manifest: bytes) -> str:
    """SHA-256, in hexadecimal, that is equal for manifests of the same version."""
    return sha256(_content(manifest)).hexdigest()


def _content(manifest: bytes, *, version: bool = True) -> bytes:
    """What is not measured, as JSON with sorted keys; other bytes as they are."""
    try:
        doc = json.loads(manifest)
        return json.dumps(_lasting(doc, version), sort_keys=True).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return manifest


def _lasting(doc: dict[str, Any], version: bool) -> dict[str, Any]:
    out = {key: value for key, value in doc.items() if key not in MEASURED}
    if not version:
        del out["version"]
    out["shards"] = [_without(shard, "compute_ms") for shard in doc["shards"]]
    if "extra" in doc:
        out["extra"] = _without(doc["extra"], "notes")
    if "batching" in doc:
        out["batching"] = _without(doc["batching"], "why")
    if doc.get("decoder") is not None:
        out["decoder"] = _without(doc["decoder"], "proof")
    for name in ALLOWED:
        if name in doc:
            out[name] = sorted(doc[name])
    return out


def _without(doc: dict[str, Any], measured: str) -> dict[str, Any]:
    return {key: value for key, value in doc.items() if key != measured}
