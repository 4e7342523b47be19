"""The manifest's field `decoder`: sizes, states and texts of a language model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from shards.errors import ManifestError
from shards.json_fields import get
from shards.schema import Manifest, PartFile, part_file
from shards.specs import DTYPES

# A size above this is a mistake, and a product of some would be a number that no memory has.
_LARGEST_SIZE = 1 << 31
T = TypeVar("T")
_ROLES = frozenset({"mask", "positions", "seqlens_k", "total_sequence_length", "logits_from"})


@dataclass(frozen=True, slots=True)
class Quantized:
    """How a model was made smaller ("rows", "int4", "int8"), and its cross-entropy, in nats a
    token, over so many tokens of a held-out text, before and after."""

    mode: str
    tokens: int
    cross_entropy_before: float
    cross_entropy_after: float

    def __str__(self) -> str:
        return (
            f"{self.mode}, held-out cross-entropy {self.cross_entropy_before:.4f} before and "
            f"{self.cross_entropy_after:.4f} after, in nats a token, over {self.tokens} tokens"
        )


@dataclass(frozen=True, kw_only=True)
class LanguageHints:
    """What a language model's graph does not tell, and the folder beside it does.

    `context`: the most tokens of a session, `heads`: those of queries, `end_tokens`: the ids that
    end an answer. `files` are the texts by file name. `quantized`: what it cost to make it smaller.
    `largest`: the largest id of the tokenizer, and its token. `window`: the tokens that some layers
    look back at, where the exporter leaves it to the graph's attention.
    """

    context: int | None = None
    heads: int | None = None
    end_tokens: tuple[int, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    quantized: Quantized | None = None
    largest: tuple[int, str] | None = None
    window: int | None = None

    @property
    def misfit(self) -> str:
        """As of `shards.parts.ModelHints`."""
        if not self.files:
            return ""
        return (
            "the folder has a tokenizer, but the model is no language model with its cache: export "
            "it with past and present keys and values"
        )


@dataclass(frozen=True, slots=True)
class StageStates:
    """What the model of one stage has beside the tensors that cross.

    `layers` are `[first, last)`. `states` are pairs of an input and the output that replaces it:
    keys and values of each layer, [batch, kv_heads, tokens, head_dim]. `feeds` names the other
    inputs, by role: "mask" INT64 [batch, tokens], "positions" INT64 [batch, s], "seqlens_k" INT32
    [batch] (the last position of each row), "total_sequence_length" INT32 (the most tokens of a
    row), "logits_from" INT64 [1] (the first row whose logits are wanted, negative from the end).
    """

    stage: int
    layers: tuple[int, int]
    states: tuple[tuple[str, str], ...]
    feeds: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DecoderProof:
    """What was found when the stages were held against the whole, run by run.

    `runs` were compared by their logits, and `differing` of them had other bits. `deviation` is the
    largest difference, relative to the largest logit of its run. `apart` is how far the whole as it
    is cut, with sums at the ends of layers as nodes of their own, is from the file's.
    """

    runs: int
    differing: int
    deviation: float
    apart: float

    def __str__(self) -> str:
        if not self.differing:
            return f"{self.runs} runs gave the whole's logits bit by bit"
        return (
            f"{self.differing} of {self.runs} runs gave the whole's tokens, but logits up to "
            f"{self.deviation:.1g} off"
        )


@dataclass(frozen=True, slots=True)
class Decoder:
    """A language model's sizes.

    `width` counts the elements of a token's hidden state, `context` the most tokens of a session.
    `kv_datatype` is that of keys and values. `shares_buffers`: a state is written in place, and
    sessions of different lengths share a run; else each run makes the state anew, for one session.
    `exact_batch`: a session's bits do not depend on the others in its run. `end_tokens` end an
    answer. `files` are the texts of the version. `proof` is None for a model whose whole was too
    large to be run. `quantized` is there where the model was made smaller by its folder.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocabulary: int
    context: int
    kv_datatype: str
    shares_buffers: bool
    exact_batch: bool
    end_tokens: tuple[int, ...]
    stages: tuple[StageStates, ...]
    files: tuple[PartFile, ...] = ()
    proof: DecoderProof | None = None
    quantized: Quantized | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Decoder | None:
        """That of a version; None for another kind of model."""
        raw = manifest.parts.get("decoder")
        return None if raw is None else decoder_from_dict(raw)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, in all stages."""
        return sum(self.stage_bytes_per_token(part.stage) for part in self.stages)

    def stage_bytes_per_token(self, stage: int) -> int:
        """Bytes of keys and values of one token in one stage."""
        tensors = len(self.part(stage).states)
        return math.prod((tensors, self.kv_heads, self.head_dim, DTYPES[self.kv_datatype].itemsize))

    def part(self, stage: int) -> StageStates:
        """The states of one stage. Raises ManifestError when there is no such stage."""
        for part in self.stages:
            if part.stage == stage:
                return part
        raise ManifestError(f"the decoder has no stage {stage}")

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON; `kv_bytes_per_token` is written for readers alone."""
        return asdict(self) | {"kv_bytes_per_token": self.kv_bytes_per_token}


_SIZES = ("layers", "heads", "kv_heads", "head_dim", "width", "vocabulary", "context")


def decoder_from_dict(raw: object) -> Decoder:
    """The field that `to_dict` wrote. Raises ManifestError that names what is wrong."""
    if not isinstance(raw, dict):
        raise ManifestError("manifest field 'decoder' must be an object")
    sizes = {key: _size(raw, key) for key in _SIZES}
    datatype = get(raw, "kv_datatype", str)
    if datatype not in DTYPES:
        raise ManifestError(f"manifest field 'kv_datatype': unsupported datatype {datatype!r:.80}")
    ends = get(raw, "end_tokens", list)
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise ManifestError("manifest field 'end_tokens' must be a list of token ids")
    decoder = Decoder(
        **sizes,
        kv_datatype=datatype,
        shares_buffers=get(raw, "shares_buffers", bool),
        exact_batch=get(raw, "exact_batch", bool),
        end_tokens=tuple(ends),
        stages=tuple(_stage(item) for item in get(raw, "stages", list)),
        files=tuple(part_file(item) for item in get(raw, "files", list)),
        proof=_optional(DecoderProof, "proof", raw.get("proof")),
        quantized=quantized_from_dict(raw.get("quantized")),
    )
    if not decoder.stages or decoder.stages[-1].layers[1] != decoder.layers:
        raise ManifestError("the stages of the decoder do not hold all its layers")
    return decoder


def check_stages(decoder: Decoder, stages: Sequence[int]) -> None:
    """Raise ManifestError unless the decoder's stages are these, and follow each other."""
    ends = [0, *(part.layers[1] for part in decoder.stages)]
    if [part.stage for part in decoder.stages] != list(stages) or [
        part.layers[0] for part in decoder.stages
    ] != ends[:-1]:
        raise ManifestError("the stages of the decoder are not those of the manifest")


def _size(raw: Mapping[str, Any], key: str) -> int:
    value = get(raw, key, int)
    if not 1 <= value < _LARGEST_SIZE:
        raise ManifestError(f"manifest field {key!r} must be a size, is {value!r:.80}")
    return int(value)


def _stage(raw: object) -> StageStates:
    if not isinstance(raw, dict):
        raise ManifestError("a stage of the decoder is not an object")
    layers, states = get(raw, "layers", list), get(raw, "states", list)
    feeds = get(raw, "feeds", dict)
    if len(layers) != 2 or not all(isinstance(n, int) for n in layers) or layers[0] > layers[1]:
        raise ManifestError("the layers of a decoder's stage must be [first, last)")
    if not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
        for pair in states
    ):
        raise ManifestError("the states of a decoder's stage must be pairs of names")
    if len(states) != 2 * (layers[1] - layers[0]):
        raise ManifestError("a layer of a decoder has keys and values, two states")
    if not feeds.keys() <= _ROLES or not all(isinstance(name, str) for name in feeds.values()):
        raise ManifestError("the feeds of a decoder's stage must be names by role")
    return StageStates(
        get(raw, "stage", int),
        (layers[0], layers[1]),
        tuple((pair[0], pair[1]) for pair in states),
        feeds,
    )


def quantized_from_dict(raw: object) -> Quantized | None:
    """None for None. Raises ManifestError for anything that is no `Quantized`."""
    return _optional(Quantized, "quantized", raw)


def _optional(kind: type[T], key: str, raw: object) -> T | None:
    """A dataclass of whole numbers, numbers and texts; None for None. Raises ManifestError."""
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise ManifestError(f"manifest field {key!r} must be an object")
    plain = {"int": int, "str": str}
    read = {
        each.name: get(raw, each.name, plain[str(each.type)])
        if each.type in plain
        else _figure(raw, each.name)
        for each in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**read)


def _figure(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ManifestError(f"manifest field {key!r} must be a number, is {value!r:.80}")
    return float(value)
