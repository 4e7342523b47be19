"""The manifest of a model version: its shards, the tensors between them, hashes, timings.

A manifest is JSON, so that any language can read it. Unknown fields are ignored, so that a newer
splitter can add some. A device reads the manifest before anything else, so this module does not
need ONNX. `shards/README.md` lists the fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any

from shards.errors import ManifestError
from shards.json_fields import check_token, digest_of, file_name, get, objects
from shards.parts import ModelKind, kinds, parts
from shards.specs import TensorSpec

# The version of the manifest's format. A reader refuses another one.
FORMAT = 1
MOST_BYTES = 4 << 20  # of a manifest; one of 50 stages has some 100 KB
MOST_MILLISECONDS = 1e12
BATCHING_MODES = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class LighterModel:
    """A whole, lighter model. It answers, `degraded`, when the mesh would miss the budget.

    `file` and `sha256` name its artifact, which has `bytes` bytes.
    """

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PartFile:
    """An artifact that belongs to a part of the manifest, and is no model."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SealedFile:
    """An artifact as it is stored encrypted: its SHA-256 and its bytes then."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class CodecError:
    """What a lossy codec on the wire does to the model's outputs: `max` and `mean` of the absolute
    differences to the exact ones, over `samples` requests, in parts of the largest output."""

    max: float
    mean: float
    samples: int


@dataclass(frozen=True, slots=True)
class Batching:
    """Whether requests may share a run, and who says so.

    `asked` is the owner's choice when the model was split: "auto", "on" or "off". `by` is
    "structure" where the graph shows that rows stay apart, "owner" where he says so, each confirmed
    by runs; "" where requests are run one by one. `why` is the reason for that.
    """

    asked: str = "auto"
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """The layers `[start, end)` of the fused graph's sorted nodes, run as one stage.

    Stage 0 is the edge's own; stages 1..n follow in pipeline order. `inputs` and `outputs` are
    those of the model in `file`. `receives` is everything that must arrive: the inputs, and the
    tensors in `carries`, which are passed on unchanged. `sends` is everything that leaves: the
    tensors that cross the next cut, or the model's outputs. A stage without layers has no file
    (`file == ""`) and passes all tensors on. `compute_ms` is the median time of a run at batch 1 on
    the machine that split the model, 0 where nothing was measured.
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


@dataclass(frozen=True, slots=True)
class Manifest:
    """One immutable version of a model. `shards` are ordered by stage.

    `batching` says whether axis 0 of every tensor that enters, leaves or crosses a cut is a batch
    axis, whose rows are independent samples. `lighter` is the model for degraded answers, if there
    is one. `fusion` is the optimisation level at which the model was fused before it was cut.
    `sealed` names the artifacts that are stored encrypted; all other hashes are those of the
    plaintext. `codecs` are the lossy codecs in which its owner lets features travel, each with its
    error while results are exact; `result_codecs` those for results, each with its error while
    features are exact. `parts` are the other fields that are objects, as they are in the JSON: each
    is read by a feature (`shards.parts`). Where one tells a `kind`, the model of a stage may have
    more inputs and outputs than the tensors that cross. `extra` has no fixed fields: the splitter
    leaves hints there for the loader (`examples`, `tolerance`).
    """

    model: str
    version: str
    created: str
    source_sha256: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shards: tuple[Shard, ...]
    batching: Batching = Batching()
    lighter: LighterModel | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    fusion: str = "basic"
    format: int = FORMAT
    sealed: Mapping[str, SealedFile] = field(default_factory=dict)
    codecs: Mapping[str, CodecError] = field(default_factory=dict)
    result_codecs: Mapping[str, CodecError] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def kind(self) -> ModelKind | None:
        """What its models are beside tensors; None for those of tensors alone."""
        return next((kind for kind in kinds() if kind.field in self.parts), None)

    @property
    def batchable(self) -> bool:
        """Whether requests may be concatenated along axis 0."""
        return self.batching.by != ""

    @property
    def stages(self) -> int:
        """How many stages the mesh runs, without the edge's own (stage 0)."""
        return sum(1 for shard in self.shards if shard.stage > 0)

    def shard(self, stage: int) -> Shard:
        """The shard of one stage. Raises ManifestError when there is no such stage."""
        for shard in self.shards:
            if shard.stage == stage:
                return shard
        known = ", ".join(str(shard.stage) for shard in self.shards)
        raise ManifestError(f"{self.model}@{self.version} has no stage {stage}; it has {known}")

    def files(self) -> tuple[str, ...]:
        """Names of every artifact of this version: in stage order, the lighter model, those of the
        parts."""
        names = [shard.file for shard in self.shards if shard.file]
        beside = [each.file for each in self.part_files()]
        return (*names, *((self.lighter.file,) if self.lighter else ()), *beside)

    def part_files(self) -> tuple[PartFile, ...]:
        """The artifacts of the parts."""
        listed = (
            get({"files": [], **self.parts[name]}, "files", list) for name in sorted(self.parts)
        )
        return tuple(part_file(item) for items in listed for item in items)

    def digest(self, file: str) -> str:
        """The SHA-256 of an artifact. Raises ManifestError when there is no such artifact."""
        for shard in self.shards:
            if shard.file and shard.file == file:
                return shard.sha256
        if self.lighter is not None and self.lighter.file == file:
            return self.lighter.sha256
        for each in self.part_files():
            if each.file == file:
                return each.sha256
        raise ManifestError(f"{self.model}@{self.version} has no file {file!r}")

    def to_json(self) -> bytes:
        """The manifest as UTF-8 JSON. Equal manifests give equal bytes."""
        raw = _for_json(self)
        raw |= raw.pop("parts") | {"batchable": self.batchable}  # older nodes read this alone
        for name in ("sealed", "codecs", "result_codecs"):
            if not raw[name]:
                del raw[name]
        return json.dumps(raw, indent=1, sort_keys=True, default=_for_json).encode()

    def codecs_doc(self) -> dict[str, Any]:
        """The codecs that the owner allows, with their errors, for JSON: those that there are."""
        found = {"codecs": self.codecs, "result_codecs": self.result_codecs}
        return {
            key: {name: asdict(error) for name, error in errors.items()}
            for key, errors in found.items()
            if errors
        }

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read and check a manifest. Raises ManifestError that names the offending field."""
        if len(data) > MOST_BYTES:
            raise ManifestError(f"the manifest has {len(data)} bytes, of {MOST_BYTES} at most")
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
            created=get(raw, "created", str),
            source_sha256=digest_of(raw, "source_sha256"),
            opset=get(raw, "opset", int),
            inputs=_specs(raw, "inputs"),
            outputs=_specs(raw, "outputs"),
            shards=tuple(_shard_from_dict(item) for item in get(raw, "shards", list)),
            batching=_batching(raw),
            lighter=None if lighter is None else _lighter(lighter),
            extra=get({"extra": {}, **raw}, "extra", dict),
            fusion=get(raw, "fusion", str),
            sealed={
                file_name(name): SealedFile(digest_of(item, "sha256"), get(item, "bytes", int))
                for name, item in objects({"sealed": {}, **raw}, "sealed").items()
            },
            codecs=_codecs(raw, "codecs"),
            result_codecs=_codecs(raw, "result_codecs"),
            parts={
                name: value
                for name, value in raw.items()
                if isinstance(value, dict) and name not in _OWN_FIELDS
            },
        )
        for part in parts():
            if raw.get(part.field) is not None:
                part.check(raw[part.field], manifest.shards)
        _check_chain(manifest)
        return manifest


_OWN_FIELDS = frozenset(each.name for each in fields(Manifest)) - {"parts"}


def _check_chain(manifest: Manifest) -> None:
    """Raise ManifestError unless the stages form one pipeline from the inputs to the outputs.

    Stages count up from 0 or 1. Each stage sends exactly the tensors that the next one receives.
    """
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
    if manifest.sealed and set(manifest.sealed) != set(manifest.files()):
        raise ManifestError("all artifacts of a version are encrypted, or none is")
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


def _for_json(part: Any) -> dict[str, Any]:
    """A part of a manifest, its own parts as they are."""
    if isinstance(part, TensorSpec):
        return part.to_dict()
    if isinstance(part, Mapping):
        return dict(part)
    return {each.name: getattr(part, each.name) for each in fields(part)}


def _shard_from_dict(raw: object) -> Shard:
    if not isinstance(raw, dict):
        raise ManifestError("a shard is not an object")
    file = get(raw, "file", str)
    carries = get(raw, "carries", list)
    if not all(isinstance(name, str) for name in carries):
        raise ManifestError("manifest field 'carries' must be a list of names")
    return Shard(
        stage=get(raw, "stage", int),
        start=get(raw, "start", int),
        end=get(raw, "end", int),
        file=file_name(file) if file else "",
        sha256=digest_of(raw, "sha256") if file else "",
        bytes=get(raw, "bytes", int),
        inputs=_specs(raw, "inputs"),
        outputs=_specs(raw, "outputs"),
        carries=tuple(carries),
        receives=_specs(raw, "receives"),
        sends=_specs(raw, "sends"),
        compute_ms=_milliseconds(raw, "compute_ms"),
    )


def _milliseconds(raw: Mapping[str, Any], key: str) -> float:
    """A field that holds a duration. Raises ManifestError, also for what no float can hold."""
    value = get(raw, key, (int, float))
    if not 0 <= value < MOST_MILLISECONDS:
        raise ManifestError(f"manifest field {key!r} must be a duration, is {value!r:.80}")
    return float(value)


def _codecs(raw: Mapping[str, Any], key: str) -> dict[str, CodecError]:
    """A field that holds codecs with their errors, and may be absent. Raises ManifestError."""
    return {
        check_token("codec", name): CodecError(
            _share(item, "max"), _share(item, "mean"), get(item, "samples", int)
        )
        for name, item in objects({key: {}, **raw}, key).items()
    }


def _share(raw: Mapping[str, Any], key: str) -> float:
    """A field that holds a number. Raises ManifestError, also for what no float can hold."""
    value = get(raw, key, (int, float))
    try:
        return float(value)
    except OverflowError:
        raise ManifestError(f"manifest field {key!r} is too large a number") from None


def _batching(raw: Mapping[str, Any]) -> Batching:
    """The field `batching`. A manifest of an older version has none: it claims what two runs
    showed, which is no proof, and is not believed. Raises ManifestError."""
    claimed = get(raw, "batchable", bool)
    item = raw.get("batching")
    if "batching" not in raw:
        old = "an older version split it, whose runs prove nothing: split it again"
        return Batching("auto", "", old if claimed else "")
    if not isinstance(item, dict):
        raise ManifestError("manifest field 'batching' must be an object")
    asked, by = get(item, "asked", str), get(item, "by", str)
    if asked not in BATCHING_MODES or by not in ("", "structure", "owner"):
        raise ManifestError(f"manifest field 'batching' has {asked!r:.40} by {by!r:.40}")
    if claimed != (by != ""):
        raise ManifestError("manifest fields 'batchable' and 'batching' contradict each other")
    return Batching(asked, by, get(item, "why", str))


def part_file(raw: object) -> PartFile:
    """An entry of a part's `files`. Raises ManifestError."""
    if not isinstance(raw, dict):
        raise ManifestError("a file of a part is not an object")
    return PartFile(
        file_name(get(raw, "file", str)), digest_of(raw, "sha256"), get(raw, "bytes", int)
    )


def _lighter(raw: object) -> LighterModel:
    if not isinstance(raw, dict):
        raise ManifestError("manifest field 'lighter' must be an object or null")
    return LighterModel(
        file_name(get(raw, "file", str)), digest_of(raw, "sha256"), get(raw, "bytes", int)
    )


def _specs(raw: Mapping[str, Any], key: str) -> tuple[TensorSpec, ...]:
    """A field that lists tensor specifications, each name once. Raises ManifestError."""
    items: Sequence[object] = get(raw, key, list)
    specs = tuple(TensorSpec.from_dict(item) for item in items)
    if len({spec.name for spec in specs}) != len(specs):
        raise ManifestError(f"manifest field {key!r} names a tensor twice")
    return specs
