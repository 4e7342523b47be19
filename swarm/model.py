"""What the mesh knows of a model: the parts of its manifest that concern requests and lanes.

The manifest itself is written and read by `shards`; its JSON is the contract between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swarm.errors import InvalidArgument, NotFound
from swarm.features import features
from swarm.subjects import token
from swarm.wire.codecs import CODECS
from swarm.wire.picture import MOST_BYTES as MOST_PICTURE
from swarm.wire.picture import is_encoded
from swarm.wire.tensors import DTYPES

MOST_BYTES = 4 << 20  # of a manifest


LARGE = 16 * 1024  # bytes of a message: 7 ms at 20 Mbit/s


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's name, datatype and shape; -1 stands for any size. any_rank: it may have any number
    of axes; the shape is empty then. usual: its shape where the model was proved, with one sample
    in a batch; empty where the manifest does not tell."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    any_rank: bool = False
    usual: tuple[int, ...] = field(default=(), compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes at its usual shape; without one, with every free dimension at 1."""
        size = DTYPES[self.datatype].itemsize
        for dimension in self.usual or self.shape:
            size *= max(1, dimension)
        return size


@dataclass(frozen=True, slots=True)
class Stage:
    """A shard as the lanes see it. compute_ms: measured when the model was split."""

    stage: int
    receives: tuple[Spec, ...]
    sends: tuple[Spec, ...]
    compute_ms: float

    @property
    def message_bytes(self) -> int:
        """Bytes of its input or of its output, whichever is larger, without the header."""
        return max(sum(s.nbytes for s in self.receives), sum(s.nbytes for s in self.sends))


@dataclass(frozen=True, slots=True)
class NamedLighter:
    """The model of the mesh that answers, `degraded`, where a version cannot in time. version: ""
    for the one that serves. degrades: its answers go to whoever does not say whether he takes
    them."""

    model: str
    version: str = ""
    degrades: bool = False

    def __str__(self) -> str:
        return f"{self.model}@{self.version}" if self.version else self.model


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One version of a model. codecs: those with a loss that its owner allows for features on the
    wire. result_codecs: those for results. batchable: requests may share a run, which is proved.
    generates: it is a language model. asks: versions of other models, NAME@VERSION, without which
    it does not answer. tokenizer: SHA-256 of its file, "" where it has none. task: what the model
    is for, as the manifest has it, unread; None where its owner did not say. lighter: the model of
    the mesh that answers in its place, None where it names none."""

    model: str
    version: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    stages: tuple[Stage, ...]  # 1..n; the edge's own shard (stage 0) is `edge`
    edge: Stage | None = None
    batchable: bool = False
    codecs: frozenset[str] = frozenset()
    result_codecs: frozenset[str] = frozenset()
    generates: bool = False
    tokenizer: str = ""
    task: Mapping[str, Any] | None = field(default=None, compare=False)
    asks: tuple[str, ...] = ()
    lighter: NamedLighter | None = None

    @property
    def is_large(self) -> bool:
        """Whether any of its messages keeps a slow link busy for a while."""
        sent = [stage.message_bytes for stage in self.stages]
        return max(*sent, sum(spec.nbytes for spec in self.outputs)) >= LARGE

    @property
    def last(self) -> int:
        return self.stages[-1].stage

    @property
    def picture(self) -> str:
        """The input that may come as a picture (`swarm.wire.picture`), "" for none."""
        if self.task is None:
            return ""
        preprocess = self.task.get("preprocess")
        name = preprocess.get("input") if isinstance(preprocess, dict) else None
        ranks = [len(spec.shape) for spec in self.inputs if spec.name == name]
        return name if type(name) is str and ranks == [4] else ""

    def check(self, inputs: Mapping[str, np.ndarray], pictures: bool = False) -> None:
        """Raises `InvalidArgument`, naming the input, what was expected and what came. pictures:
        whether one may come; who decodes it checks what is in it."""
        if self.generates:
            raise InvalidArgument(
                f"model {self.model!r} is a language model: `swarm generate`, `mesh.generate` and "
                "the subject `generate` ask it for tokens"
            )
        check_tensors(
            self.inputs, inputs, f"model {self.model!r}", self.picture if pictures else ""
        )

    def check_outputs(self, names: Iterable[str]) -> None:
        """Raises `InvalidArgument` for a name that is none of the outputs, and lists those."""
        known = [spec.name for spec in self.outputs]
        for name in names:
            if name not in known:
                raise InvalidArgument(
                    f"model {self.model!r} has no output {name!r:.80}: it has {', '.join(known)}"
                )

    @classmethod
    def from_manifest(cls, data: bytes) -> ModelInfo:
        """Raises `InvalidArgument` for bytes that are no manifest."""
        try:
            if len(data) > MOST_BYTES:
                raise ValueError(f"it has {len(data)} bytes, of {MOST_BYTES} at most")
            doc = json.loads(data)
            stages = [_stage(shard) for shard in doc["shards"]]
            edge = [s for s in stages if s.stage == 0]
            served = tuple(s for s in stages if s.stage > 0)
            if [s.stage for s in served] != list(range(1, len(served) + 1)) or not served:
                raise ValueError("its stages are not 1 to n")
            return cls(
                model=token(doc["model"], "model name"),
                version=token(doc["version"], "version"),
                inputs=_specs(doc["inputs"]),
                outputs=_specs(doc["outputs"]),
                stages=served,
                edge=edge[0] if edge else None,
                batchable=bool((doc.get("batching") or {}).get("by")),
                codecs=frozenset(doc.get("codecs", {})).intersection(CODECS),
                result_codecs=frozenset(doc.get("result_codecs", {})).intersection(CODECS),
                generates=doc.get("decoder") is not None,
                tokenizer=_tokenizer(doc.get("decoder") or {}),
                task=doc["task"] if isinstance(doc.get("task"), dict) else None,
                asks=_asks(doc),
                lighter=_lighter(doc.get("lighter_model")),
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise InvalidArgument(f"this is no model manifest: {error!r:.200}") from None


def _asks(doc: Mapping[str, Any]) -> tuple[str, ...]:
    names = sorted({str(name) for each in features() for name in each.asks(doc)})
    for name in names:
        model, _, version = name.partition("@")
        token(model, "model name"), token(version, "version")
    return tuple(names)


def _lighter(doc: Mapping[str, Any] | None) -> NamedLighter | None:
    if doc is None:
        return None
    version = doc.get("version") or ""
    return NamedLighter(
        token(doc["model"], "model name"),
        token(version, "version") if version else "",
        doc.get("degrades") is True,
    )


def lighter_misfit(info: ModelInfo, lighter: ModelInfo) -> str:
    """Why a model cannot answer in a version's place; "" where it can: it takes each input that the
    version takes, and its answer has the version's outputs."""
    whose = f"{lighter.model}@{lighter.version}"
    if lighter.model == info.model:
        return f"{whose} is a version of the same model: name another model"
    if info.generates or lighter.generates:
        return "a language model has no lighter model: `cascade` lets a smaller one begin"
    if lighter.edge is not None:
        return f"the first layers of {whose} are an edge's: split it without --edge-layers"
    for title, mine, theirs in (
        ("input", info.inputs, lighter.inputs),
        ("output", info.outputs, lighter.outputs),
    ):
        found = {spec.name: spec for spec in theirs}
        for spec in mine:
            other = found.pop(spec.name, None)
            if other is None:
                return f"{whose} has no {title} {spec.name!r}"
            if other.datatype != spec.datatype or not _is_as_wide(spec, other, title == "output"):
                wanted = f"{spec.datatype} {_shape(spec.shape)}"
                return (
                    f"{title} {spec.name!r} is {other.datatype} {_shape(other.shape)} in {whose}, "
                    f"{wanted} in {info.model}@{info.version}"
                )
        if found:
            return f"{info.model}@{info.version} has no {title} {next(iter(found))!r}, {whose} has"
    return ""


def _is_as_wide(spec: Spec, other: Spec, either: bool) -> bool:
    """Whether `other` holds all that `spec` holds; either: or the other way round."""
    if other.any_rank or (either and spec.any_rank):
        return True
    if spec.any_rank or len(spec.shape) != len(other.shape):
        return False
    pairs = zip(spec.shape, other.shape, strict=True)
    return all(have in (-1, want) or (either and want == -1) for want, have in pairs)


def _tokenizer(decoder: Mapping[str, Any]) -> str:
    files = {each["file"]: str(each["sha256"]) for each in decoder.get("files", ())}
    return files.get("tokenizer.json", "")


def check_tensors(
    specs: tuple[Spec, ...], tensors: Mapping[str, np.ndarray], whose: str, picture: str = ""
) -> None:
    """Raises `InvalidArgument` unless names, datatypes and shapes are as the specs say. picture:
    the name of the one that may be a picture's bytes."""
    if len(tensors) != len(specs) or any(spec.name not in tensors for spec in specs):
        raise InvalidArgument(
            f"{whose} takes {_names(s.name for s in specs)}, not {_names(tensors)}"
        )
    for spec in specs:
        array = tensors[spec.name]
        if spec.name == picture and is_encoded(array) and 0 < array.nbytes <= MOST_PICTURE:
            continue
        if array.dtype != DTYPES[spec.datatype]:
            raise InvalidArgument(
                f"input {spec.name!r} must be {spec.datatype} ({DTYPES[spec.datatype]}), "
                f"not {array.dtype}"
            )
        shape = array.shape
        if shape != spec.shape and not _fits(spec, shape):
            raise InvalidArgument(
                f"input {spec.name!r} must have shape {_shape(spec.shape)}, not {_shape(shape)}"
            )
        if 0 in shape:
            raise InvalidArgument(f"input {spec.name!r} is empty: shape {_shape(shape)}")


def _fits(spec: Spec, got: tuple[int, ...]) -> bool:
    return spec.any_rank or (
        len(spec.shape) == len(got)
        and all(want in (-1, have) for want, have in zip(spec.shape, got, strict=True))
    )


def unknown_model(model: str, version: str = "") -> NotFound:
    """The error for a model that the mesh does not have."""
    what = f"model {model!r}" + (f" version {version!r}" if version else "")
    return NotFound(
        f"{what} is not in this mesh: `swarm model list` shows what is, "
        "`swarm model push DIR` adds one"
    )


def _stage(doc: dict[str, Any]) -> Stage:
    return Stage(
        int(doc["stage"]),
        _specs(doc["receives"]),
        _specs(doc["sends"]),
        float(doc.get("compute_ms") or 0.0),
    )


def _specs(docs: list[dict[str, Any]]) -> tuple[Spec, ...]:
    specs = tuple(
        Spec(
            str(d["name"]),
            str(d["datatype"]),
            tuple(d["shape"]),
            d.get("any_rank", False) is True,
            _usual(d),
        )
        for d in docs
    )
    for spec in specs:
        if spec.datatype not in DTYPES:
            raise ValueError(f"tensor {spec.name!r} has datatype {spec.datatype}")
        if not all(type(d) is int and d >= -1 for d in spec.shape):
            raise ValueError(f"tensor {spec.name!r} has shape {spec.shape}")
    return specs


def _usual(doc: dict[str, Any]) -> tuple[int, ...]:
    seen, told = tuple((doc.get("example") or {}).get("shape", ())), tuple(doc["shape"])
    if not all(type(d) is int and d >= 0 for d in seen):
        raise ValueError(f"tensor {doc['name']!r} has an example of shape {seen}")
    if doc.get("any_rank") is True:
        return seen
    if len(seen) != len(told):
        return ()
    one_sample = (1, *seen[1:]) if seen and told[0] == -1 and doc.get("batch") is True else seen
    return tuple(s if t == -1 else t for s, t in zip(one_sample, told, strict=True))


def _names(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join("any" if d == -1 else str(d) for d in shape) + "]"
