"""The version of a composition: its manifest and its only file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shards.compose.check import Checked
from shards.compose.composition import Composition
from shards.compose.nearest import IndexAbout
from shards.compose.part import FILE, PART
from shards.manifest import Manifest, Shard

NO_INDEXES: Mapping[str, bytes] = {}


def index_file(index: str, file: str) -> str:
    """The name that a file of an index has in a version."""
    return f"{index}.{file}"


def version_of(
    composition: Composition,
    checked: Checked,
    models: Mapping[str, str],
    *,
    name: str,
    version: str,
    compute_ms: float,
    indexes: Mapping[str, bytes] = NO_INDEXES,
) -> tuple[Manifest, dict[str, bytes]]:
    """composition: with pinned versions. models: NAME@VERSION by part. compute_ms: of all its
    models, as they were measured when they were split. indexes: the files of its indexes, by name
    in the version (`index_file`)."""
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
    part: dict[str, Any] = {"parts": len(composition.parts), "models": dict(models)}
    if composition.indexes:
        part["indexes"] = {
            name: (each if isinstance(each, IndexAbout) else each.about).to_doc()
            for name, each in composition.indexes.items()
        }
        part["files"] = [
            {"file": file, "sha256": hashlib.sha256(found).hexdigest(), "bytes": len(found)}
            for file, found in indexes.items()
        ]
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
        parts={PART.field: part},
    )
    return manifest, {FILE: data, **indexes}
