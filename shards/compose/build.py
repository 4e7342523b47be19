"""The version of a composition: its manifest and its only file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from shards.compose.check import Checked
from shards.compose.composition import Composition
from shards.compose.part import FILE, PART
from shards.manifest import Manifest, Shard


def version_of(
    composition: Composition,
    checked: Checked,
    models: Mapping[str, str],
    *,
    name: str,
    version: str,
    compute_ms: float,
) -> tuple[Manifest, dict[str, bytes]]:
    """composition: with pinned versions. models: NAME@VERSION by part. compute_ms: of all its
    models, as they were measured when they were split."""
    data = composition.to_json()
    digest = hashlib.sha256(data).hexdigest()
    stage = Shard(
        stage=1,
        start=0,
        end=len(composition.parts),
        file=FILE,
        sha256=digest,
        bytes=len(data),
        inputs=composition.inputs,
        outputs=checked.outputs,
        carries=(),
        receives=composition.inputs,
        sends=checked.outputs,
        compute_ms=compute_ms,
    )
    manifest = Manifest(
        model=name,
        version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source_sha256=digest,
        opset=0,
        inputs=composition.inputs,
        outputs=checked.outputs,
        shards=(stage,),
        fusion="",
        parts={PART.field: {"parts": len(composition.parts), "models": dict(models)}},
    )
    return manifest, {FILE: data}
