"""What a composition says: its inputs, its parts, and which tensors are its outputs.

A composition is a TOML file that an owner writes, and the same as JSON in the mesh, there with the
versions of its models. A tensor is named `PART.TENSOR`, an input of the composition by its name.

    [inputs]
    image = { datatype = "FP32", shape = [1, 3, 240, 320] }

    [[part]]
    name = "faces"
    model = "ultraface@1"                # asked once
    inputs = { input = "image" }

    [[part]]
    name = "kind"
    map = "classifier@2"                 # asked for each row of its inputs
    inputs = { x = "crops.crops" }
    most = 16

    [[part]]
    name = "label"
    choose = { by = "small.scores", measure = "margin", below = 0.2 }
    then = "large"
    otherwise = "small"

    [outputs]
    scores = "label.scores"

A part has one of the keys `model`, `map`, `choose`, `first`, `nearest`, or the name of an operator
(`shards.compose.operators`).
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from shards.cache.part import CacheBounds
from shards.compose.errors import CompositionError
from shards.compose.measures import MEASURES, MeasureBound
from shards.compose.nearest import MOST_NEAREST, IndexAbout, NearestIndex
from shards.compose.operators import OPERATORS
from shards.errors import ManifestError
from shards.json_fields import check_token
from shards.specs import TensorSpec

FORMAT = 1
MOST_BYTES = 256 << 10  # of a composition
MOST_PARTS = 64
LONGEST_NAME = 64  # characters of a part's: hops, records and metrics carry it
MOST_ROWS = 1024  # that a `map` may be allowed
MOST_BOUND = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor: of a part, or of the composition's inputs where the part is ""."""

    part: str
    tensor: str

    def __str__(self) -> str:
        return f"{self.part}.{self.tensor}" if self.part else self.tensor

    @classmethod
    def of(cls, text: object, where: str) -> Ref:
        """Raises CompositionError."""
        if not isinstance(text, str) or not text:
            raise CompositionError(where, f'a tensor is named "PART.TENSOR", not {text!r:.80}')
        part, dot, tensor = text.partition(".")
        return cls(part, tensor) if dot else cls("", part)


@dataclass(frozen=True, slots=True)
class AskPart:
    """A part that asks a model: once, or once for each row of its inputs (`each_row`), of `most` at
    most. version: "" until one is pinned. optional: where it is not answered in time, the
    composition is answered without it. cache: within these bounds its node keeps the answers."""

    name: str
    model: str
    version: str
    inputs: Mapping[str, Ref]
    each_row: bool = False
    most: int = 1
    optional: bool = False
    cache: CacheBounds | None = None

    def tensors(self) -> tuple[Ref, ...]:
        return tuple(self.inputs.values())


@dataclass(frozen=True, slots=True)
class OperatePart:
    """A part that computes an operator, on this node."""

    name: str
    operator: str
    inputs: Mapping[str, Ref]
    settings: Mapping[str, Any]

    def tensors(self) -> tuple[Ref, ...]:
        return tuple(self.inputs.values())


@dataclass(frozen=True, slots=True)
class ChoosePart:
    """A part that is one of two others, by a measure of a tensor. What only the other one needs is
    not run."""

    name: str
    by: Ref
    condition: MeasureBound
    then: str
    otherwise: str

    def tensors(self) -> tuple[Ref, ...]:
        return (self.by,)


@dataclass(frozen=True, slots=True)
class FirstPart:
    """A part that is the first of others to be answered; the rest are cancelled."""

    name: str
    of: tuple[str, ...]

    def tensors(self) -> tuple[Ref, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class NearestPart:
    """A part that finds the nearest vectors of an index for each row of a tensor: `k`, and none
    farther than `most_distance`."""

    name: str
    of: Ref
    index: str
    k: int
    most_distance: float | None

    def tensors(self) -> tuple[Ref, ...]:
        return (self.of,)


Part = AskPart | OperatePart | ChoosePart | FirstPart | NearestPart


def parts_asked(part: Part) -> tuple[str, ...]:
    """The parts that a part stands for."""
    match part:
        case ChoosePart():
            return (part.then, part.otherwise)
        case FirstPart():
            return part.of
    return ()


def needed(part: Part) -> list[str]:
    """The parts that a part reads or stands for, those that it reads first."""
    return [*(ref.part for ref in part.tensors() if ref.part), *parts_asked(part)]


@dataclass(frozen=True, slots=True)
class Composition:
    """As it was declared; `shards.compose.check` says whether it can run. indexes: those that are
    at hand, by name; they are searched where they were opened."""

    inputs: tuple[TensorSpec, ...]
    parts: Mapping[str, Part]
    outputs: Mapping[str, Ref]
    source: Mapping[str, Any]
    indexes: Mapping[str, IndexAbout | NearestIndex] = field(default_factory=dict, compare=False)

    def searches(self) -> frozenset[str]:
        """The names of the indexes that its parts search."""
        parts = self.parts.values()
        return frozenset(part.index for part in parts if isinstance(part, NearestPart))

    def asks(self) -> Iterator[AskPart]:
        """The parts that ask models."""
        return (part for part in self.parts.values() if isinstance(part, AskPart))

    def pinned(self, versions: Mapping[str, str]) -> Composition:
        """The same with these versions, by part."""
        parts = [
            {**raw, **_pin(raw, versions[raw["name"]])} if raw["name"] in versions else raw
            for raw in self.source["part"]
        ]
        return replace(composition_of({**self.source, "part": parts}), indexes=self.indexes)

    def to_json(self) -> bytes:
        """Equal compositions give equal bytes."""
        return json.dumps(
            {**self.source, "format": FORMAT}, indent=1, sort_keys=True, allow_nan=False
        ).encode()


def _pin(raw: Mapping[str, Any], version: str) -> dict[str, str]:
    key = "map" if "map" in raw else "model"
    return {key: f"{raw[key].partition('@')[0]}@{version}"}


def from_toml(text: str) -> Composition:
    """Raises CompositionError."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CompositionError("", f"this is no TOML: {error}") from None
    return composition_of(raw)


def from_json(data: bytes) -> Composition:
    """Raises CompositionError."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes, of {MOST_BYTES} at most")
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CompositionError("", f"this is no composition: {error}") from None
    return composition_of(raw)


def composition_of(raw: object) -> Composition:
    """Raises CompositionError."""
    document = _table(raw, "")
    _known(document, {"format", "inputs", "part", "outputs"}, "")
    if {"inputs", "part", "outputs"} - document.keys():
        raise CompositionError("", "it needs [inputs], a [[part]], and [outputs]")
    if document.get("format", FORMAT) != FORMAT:
        raise CompositionError("", f"format {document['format']!r:.40} is unknown: upgrade")
    inputs = tuple(
        _spec(name, spec) for name, spec in _table(document.get("inputs"), "inputs").items()
    )
    listed = document.get("part")
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST_PARTS:
        raise CompositionError("", f"it has [[part]] tables, 1 to {MOST_PARTS}")
    dotted = {spec.name for spec in inputs if "." in spec.name}
    parts: dict[str, Part] = {}
    for item in listed:
        part = _of_inputs(_part(_table(item, "part")), dotted)
        if part.name in parts:
            raise CompositionError(part.name, "two parts have this name")
        parts[part.name] = part
    for name in dotted:
        if name.partition(".")[0] in parts:
            raise CompositionError("inputs", f"{name!r} would be a tensor of a part: rename one")
    outputs = _refs(document.get("outputs"), "outputs")
    outputs = {name: _of_input(ref, dotted) for name, ref in outputs.items()}
    if not inputs or not outputs:
        raise CompositionError("", "it needs [inputs] and [outputs]")
    return Composition(inputs, parts, outputs, document)


def _of_input(ref: Ref, dotted: Set[str]) -> Ref:
    """dotted: inputs of the composition that have a dot in their names, as `input.1`."""
    return Ref("", str(ref)) if str(ref) in dotted else ref


def _of_inputs(part: Part, dotted: Set[str]) -> Part:
    if not dotted:
        return part
    match part:
        case AskPart() | OperatePart():
            inputs = {name: _of_input(ref, dotted) for name, ref in part.inputs.items()}
            return replace(part, inputs=inputs)
        case ChoosePart():
            return replace(part, by=_of_input(part.by, dotted))
        case NearestPart():
            return replace(part, of=_of_input(part.of, dotted))
    return part


def _part(raw: Mapping[str, Any]) -> Part:
    name = raw.get("name")
    try:
        check_token("part", name)
    except ManifestError as error:
        raise CompositionError(str(name)[:80], str(error)) from None
    assert isinstance(name, str)
    if len(name) > LONGEST_NAME:
        raise CompositionError(name[:80], f"a name has {LONGEST_NAME} characters at most")
    kinds = [key for key in raw if key in _KINDS or key in OPERATORS]
    if len(kinds) != 1:
        known = ", ".join([*_KINDS, *OPERATORS])
        raise CompositionError(name, f"a part has one of {known}; here are {kinds or 'none'}")
    (kind,) = kinds
    return _KINDS[kind](name, raw) if kind in _KINDS else _operate(name, kind, raw)


def _ask(name: str, raw: Mapping[str, Any]) -> AskPart:
    each_row = "map" in raw
    key = "map" if each_row else "model"
    keys = {"name", key, "inputs", "optional", "cache"} | ({"most"} if each_row else set())
    _known(raw, keys, name)
    model, at, version = str(raw[key]).partition("@")
    try:
        check_token("model", model)
        if at:
            check_token("version", version)
    except ManifestError as error:
        raise CompositionError(name, str(error)) from None
    most = raw.get("most", 1) if not each_row else raw.get("most")
    if type(most) is not int or not 1 <= most <= MOST_ROWS:
        raise CompositionError(name, f"`most` rows are 1 to {MOST_ROWS}, not {most!r:.40}")
    optional = raw.get("optional", False)
    if not isinstance(optional, bool):
        raise CompositionError(name, f"`optional` is true or false, not {optional!r:.40}")
    inputs = _refs(raw.get("inputs"), name)
    if not inputs:
        raise CompositionError(name, "`inputs` says what the model is given")
    try:
        cache = CacheBounds.of(raw["cache"]) if "cache" in raw else None
    except ManifestError as error:
        raise CompositionError(name, str(error)) from None
    return AskPart(name, model, version, inputs, each_row, most, optional, cache)


def _choose(name: str, raw: Mapping[str, Any]) -> ChoosePart:
    _known(raw, {"name", "choose", "then", "otherwise"}, name)
    condition = dict(_table(raw["choose"], name))
    _known(condition, {"by", "measure", "below", "above"}, name)
    by = Ref.of(condition.pop("by", None), name)
    measure = condition.pop("measure", None)
    if measure not in MEASURES:
        raise CompositionError(name, f"`measure` is one of {', '.join(MEASURES)}")
    bound: Any = next(iter(condition.values()), None)
    if len(condition) != 1 or type(bound) not in (int, float) or not abs(bound) <= MOST_BOUND:
        raise CompositionError(name, "`choose` has a finite number, `below` or `above`")
    found = MeasureBound(measure, next(iter(condition)) == "below", float(bound))
    return ChoosePart(name, by, found, _name(raw, "then", name), _name(raw, "otherwise", name))


def _first(name: str, raw: Mapping[str, Any]) -> FirstPart:
    _known(raw, {"name", "first"}, name)
    of = raw["first"]
    if not isinstance(of, list) or len(of) < 2 or not all(isinstance(each, str) for each in of):
        raise CompositionError(name, "`first` lists two parts or more")
    return FirstPart(name, tuple(of))


def _nearest(name: str, raw: Mapping[str, Any]) -> NearestPart:
    _known(raw, {"name", "nearest"}, name)
    given = _table(raw["nearest"], name)
    _known(given, {"of", "index", "k", "most_distance"}, name)
    index, k, most = given.get("index"), given.get("k", 1), given.get("most_distance")
    try:
        check_token("index", index)
    except ManifestError as error:
        raise CompositionError(name, str(error)) from None
    if type(k) is not int or not 1 <= k <= MOST_NEAREST:
        raise CompositionError(name, f"`k` is 1 to {MOST_NEAREST}, not {k!r:.40}")
    if most is not None and (type(most) not in (int, float) or not abs(most) <= MOST_BOUND):
        raise CompositionError(name, f"`most_distance` is a finite number, not {most!r:.40}")
    of = Ref.of(given.get("of"), name)
    return NearestPart(name, of, str(index), k, None if most is None else float(most))


_KINDS: Mapping[str, Callable[[str, Mapping[str, Any]], Part]] = {
    "model": _ask,
    "map": _ask,
    "choose": _choose,
    "first": _first,
    "nearest": _nearest,
}


def _operate(name: str, kind: str, raw: Mapping[str, Any]) -> OperatePart:
    _known(raw, {"name", kind}, name)
    operator = OPERATORS[kind]
    given = raw[kind]
    if operator.any_number:
        # A list of tensors, or a table with the list `of`.
        given = dict(_table({"of": given} if isinstance(given, list) else given, name))
        of = given.pop("of", None)
        if not isinstance(of, list) or not of:
            raise CompositionError(name, f"`{kind}` lists tensors")
        refs = {str(number): Ref.of(text, name) for number, text in enumerate(of)}
    else:
        given = dict(_table(given, name))
        refs = {key: Ref.of(given.pop(key, None), name) for key in operator.inputs}
    _known(given, operator.settings.keys(), name)
    return OperatePart(name, kind, refs, operator.with_defaults(given, name))


def _name(raw: Mapping[str, Any], key: str, where: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        raise CompositionError(where, f"`{key}` names a part")
    return value


def _refs(raw: object, where: str) -> dict[str, Ref]:
    return {name: Ref.of(text, where) for name, text in _table(raw, where).items()}


def _table(raw: object, where: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise CompositionError(where, f"a table is expected, not {raw!r:.80}")
    return raw


def _known(raw: Mapping[str, Any], keys: Any, where: str) -> None:
    unknown = sorted(set(raw) - set(keys))
    if unknown:
        raise CompositionError(where, f"{unknown[0]!r} is unknown here: there are {sorted(keys)}")


def _spec(name: str, raw: object) -> TensorSpec:
    table = _table(raw, "inputs")
    _known(table, {"datatype", "shape", "batch"}, "inputs")
    try:
        return TensorSpec.from_dict({**table, "name": name})
    except ManifestError as error:
        raise CompositionError("inputs", str(error)) from None
