"""What one version of a model consists of: shards, tensors between them, hashes, timings.

A manifest is JSON, so that any language can read one; unknown fields are ignored, so that a
newer splitter can add some. This module needs no ONNX: it is what a device reads first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from shards.errors import ManifestError
from shards.specs import TensorSpec

FORMAT = 1
FILE_NAME = "manifest.json"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
# Files lie next to the manifest: a name that climbs out of the folder is an attack or a mistake.
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LighterModel:
    """A whole, lighter model that answers when the budget would be missed (`degraded`)."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Shard:
    """The layers `[start, end)` of the fused graph's sorted nodes, run as one stage.

    Stage 0 is the edge's own shard; stages 1..n follow in pipeline order. `inputs` and `outputs`
    are the runtime session's; `receives` (inputs and carries) is everything that must arrive,
    `sends` everything that leaves: the next cut's live set, or the model's outputs. `carries`
    names the tensors that are passed on without being changed. A stage without layers has
    `file == ""`: it passes everything through. `compute_ms` is a median at batch 1, measured
    where the model was split; 0 where nothing was measured.
    """

    stage: int
    start: int
    end: int
    file: str
    sha256: str
    bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    carries: tuple[str, ...]
    receives: tuple[TensorSpec, ...]
    sends: tuple[TensorSpec, ...]
    compute_ms: float = 0.0
    self_test: None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One immutable version of a model. `shards` are ordered by stage.

    `batchable`: every tensor that enters, leaves or crosses a cut has a dynamic batch axis 0.
    `extra` is free: the splitter leaves there what a loader may use (`examples`, `tolerance`).
    """

    model: str
    version: str
    created: str
    source_sha256: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shards: tuple[Shard, ...]
    batchable: bool = False
    lighter: LighterModel | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    fusion: str = "basic"
    format: int = FORMAT

    @property
    def stages(self) -> int:
        """How many stages the mesh runs; the edge's own (stage 0) is not one of them."""
        return sum(1 for shard in self.shards if shard.stage > 0)

    @property
    def has_edge(self) -> bool:
        """Whether the edge runs the first layers itself."""
        return any(shard.stage == 0 for shard in self.shards)

    def shard(self, stage: int) -> Shard:
        """The shard of one stage. Raises ManifestError when there is none."""
        for shard in self.shards:
            if shard.stage == stage:
                return shard
        known = ", ".join(str(shard.stage) for shard in self.shards)
        raise ManifestError(f"{self.model}@{self.version} has no stage {stage}; it has {known}")

    def files(self) -> tuple[str, ...]:
        """Names of every artifact of this version, in stage order, the lighter model last."""
        names = [shard.file for shard in self.shards if shard.file]
        return (*names, *((self.lighter.file,) if self.lighter else ()))

    def to_json(self) -> bytes:
        """UTF-8 JSON, stable for equal manifests."""
        raw = {
            "format": self.format,
            "model": self.model,
            "version": self.version,
            "created": self.created,
            "source_sha256": self.source_sha256,
            "opset": self.opset,
            "fusion": self.fusion,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "shards": [_shard_to_dict(shard) for shard in self.shards],
            "batchable": self.batchable,
            "lighter": None
            if self.lighter is None
            else {
                "file": self.lighter.file,
                "sha256": self.lighter.sha256,
                "bytes": self.lighter.bytes,
            },
            "extra": self.extra,
        }
        return json.dumps(raw, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read and check a manifest. Raises ManifestError that names the offending field."""
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"the manifest is not JSON: {error}") from error
        if not isinstance(raw, dict):
            raise ManifestError("the manifest is not a JSON object")
        if raw.get("format") != FORMAT:
            raise ManifestError(
                f"manifest format {raw.get('format')!r} is unknown, this version reads {FORMAT}: "
                "upgrade the node, or split the model again"
            )
        lighter = raw.get("lighter")
        manifest = cls(
            model=check_token("model name", raw.get("model")),
            version=check_token("model version", raw.get("version")),
            created=_get(raw, "created", str),
            source_sha256=_digest(raw, "source_sha256"),
            opset=_get(raw, "opset", int),
            inputs=_specs(raw, "inputs"),
            outputs=_specs(raw, "outputs"),
            shards=tuple(_shard_from_dict(item) for item in _get(raw, "shards", list)),
            batchable=_get(raw, "batchable", bool),
            lighter=None if lighter is None else _lighter(lighter),
            extra=_get({"extra": {}, **raw}, "extra", dict),
            fusion=_get(raw, "fusion", str),
        )
        _check_chain(manifest)
        return manifest


def check_token(what: str, value: object) -> str:
    """A name that may become a subject's token or a folder. Raises ManifestError."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ManifestError(f"{what} {value!r} must be made of letters, digits, '-' and '_'")
    return value


def _check_chain(manifest: Manifest) -> None:
    """What a stage sends is what the next one receives; stages count up from 0 or 1."""
    shards = manifest.shards
    if not shards or not manifest.stages:
        raise ManifestError("the manifest has no stages")
    first = shards[0].stage
    if first not in (0, 1) or [s.stage for s in shards] != list(range(first, first + len(shards))):
        raise ManifestError("stages must be listed in order, from 0 (edge) or 1, without a gap")
    for here, after in pairwise(shards):
        if set(here.sends) != set(after.receives) or here.end != after.start:
            raise ManifestError(f"stage {here.stage} and stage {after.stage} do not fit together")
    if set(shards[0].receives) != set(manifest.inputs):
        raise ManifestError("the first stage does not receive the model's inputs")
    if set(shards[-1].sends) != set(manifest.outputs):
        raise ManifestError("the last stage does not send the model's outputs")
    if len(set(manifest.files())) != len(manifest.files()):
        raise ManifestError("two artifacts share one file name")
    for shard in shards:
        arrives = {spec.name for spec in shard.receives}
        made = {spec.name for spec in shard.outputs}
        leaves = {spec.name for spec in shard.sends}
        if leaves != made | set(shard.carries) or made & set(shard.carries):
            raise ManifestError(f"stage {shard.stage} does not make or carry what it sends")
        if {spec.name for spec in shard.inputs} | set(shard.carries) != arrives:
            raise ManifestError(f"stage {shard.stage} does not use what it receives")
        if made and not shard.file:
            raise ManifestError(f"stage {shard.stage} makes tensors but has no file")


def _shard_to_dict(shard: Shard) -> dict[str, Any]:
    return {
        "stage": shard.stage,
        "start": shard.start,
        "end": shard.end,
        "file": shard.file,
        "sha256": shard.sha256,
        "bytes": shard.bytes,
        "inputs": [spec.to_dict() for spec in shard.inputs],
        "outputs": [spec.to_dict() for spec in shard.outputs],
        "carries": list(shard.carries),
        "receives": [spec.to_dict() for spec in shard.receives],
        "sends": [spec.to_dict() for spec in shard.sends],
        "compute_ms": shard.compute_ms,
        "self_test": None,
    }


def _shard_from_dict(raw: object) -> Shard:
    if not isinstance(raw, dict):
        raise ManifestError("a shard is not an object")
    file = _get(raw, "file", str)
    carries = _get(raw, "carries", list)
    if not all(isinstance(name, str) for name in carries):
        raise ManifestError("manifest field 'carries' must be a list of names")
    return Shard(
        stage=_get(raw, "stage", int),
        start=_get(raw, "start", int),
        end=_get(raw, "end", int),
        file=_file(file) if file else "",
        sha256=_digest(raw, "sha256") if file else "",
        bytes=_get(raw, "bytes", int),
        inputs=_specs(raw, "inputs"),
        outputs=_specs(raw, "outputs"),
        carries=tuple(carries),
        receives=_specs(raw, "receives"),
        sends=_specs(raw, "sends"),
        compute_ms=float(_get(raw, "compute_ms", (int, float))),
    )


def _lighter(raw: object) -> LighterModel:
    if not isinstance(raw, dict):
        raise ManifestError("manifest field 'lighter' must be an object or null")
    return LighterModel(
        _file(_get(raw, "file", str)), _digest(raw, "sha256"), _get(raw, "bytes", int)
    )


def _specs(raw: Mapping[str, Any], key: str) -> tuple[TensorSpec, ...]:
    items: Sequence[object] = _get(raw, key, list)
    specs = tuple(TensorSpec.from_dict(item) for item in items)
    if len({spec.name for spec in specs}) != len(specs):
        raise ManifestError(f"manifest field {key!r} names a tensor twice")
    return specs


def _digest(raw: Mapping[str, Any], key: str) -> str:
    value = _get(raw, key, str)
    if not _SHA256.fullmatch(value):
        raise ManifestError(f"manifest field {key!r} is not a SHA-256 in hexadecimal")
    return str(value)


def _file(name: str) -> str:
    if not _FILE.fullmatch(name) or name == FILE_NAME:
        raise ManifestError(f"{name!r} is not a plain file name")
    return name


def _get(raw: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = raw.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = kind.__name__ if isinstance(kind, type) else "number"
        raise ManifestError(f"manifest field {key!r} must be of type {names}, is {value!r}")
    return value
