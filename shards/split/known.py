"""The cuts of a version that was split before: measured times choose them, and differ each time."""

from __future__ import annotations

from collections.abc import Sequence

from shards.manifest import Manifest


def known_ends(known: Sequence[Manifest], digest: str, stages: int | None) -> list[int]:
    """Where the stages of the first of these versions end that is of the same file and has as many
    stages: in layers of the graph, or in what its kind counts; empty where none is so."""
    for manifest in known:
        if manifest.source_sha256 == digest and manifest.stages == stages:
            if manifest.kind is not None:
                return manifest.kind.stage_ends(manifest)
            return [shard.end for shard in manifest.shards]
    return []
