"""Whether a composition can run: what each part is given and makes, and that none waits for itself.

What is refused here never reaches a request: unknown tensors, datatypes and shapes that do not fit,
circles, a fan-out beyond its bound, an output that an optional part may leave without a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shards.compose.composition import (
    MOST_ROWS,
    AskPart,
    ChoosePart,
    Composition,
    FirstPart,
    NearestPart,
    OperatePart,
    Part,
    Ref,
    needed,
    parts_asked,
)
from shards.compose.errors import CompositionError
from shards.compose.nearest import IndexAbout
from shards.compose.operators import OF_THOSE_THERE, OPERATORS
from shards.specs import TensorSpec


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a model takes and gives. batchable: rows of one request are independent samples."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batchable: bool = False


@dataclass(slots=True)
class Checked:
    """tensors: what each part makes, by its name. rows: how many rows a part makes at most, where
    that is known. order: the parts, each behind those that it reads. may_lack: parts that may be
    left out."""

    tensors: dict[str, dict[str, TensorSpec]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    may_lack: set[str] = field(default_factory=set)
    outputs: tuple[TensorSpec, ...] = ()


def check(composition: Composition, models: Mapping[str, ModelSignature]) -> Checked:
    """models: of the parts that ask one, by their names. Raises CompositionError."""
    found = Checked()
    found.tensors[""] = {spec.name: spec for spec in composition.inputs}
    for name in _order(composition):
        part = composition.parts[name]
        match part:
            case AskPart():
                _ask(part, models[name], found)
            case OperatePart():
                _operate(part, found)
            case ChoosePart() | FirstPart():
                _one_of(part, found)
            case NearestPart():
                _nearest(part, composition, found)
        found.order.append(name)
    outputs = []
    for name, ref in composition.outputs.items():
        spec = _spec(found, ref, "", f"output {name!r}: ")
        if ref.part in found.may_lack:
            raise CompositionError(
                "", f"output {name!r}: {ref} may be left out: read it by `first`, `mean`, or `vote`"
            )
        outputs.append(replace(spec, name=name, batch=False))
    found.outputs = tuple(outputs)
    read = {ref.part for ref in composition.outputs.values()}
    for part in composition.parts.values():
        read.update(needed(part))
    for name in composition.parts:
        if name not in read:
            raise CompositionError(name, "nobody reads it: remove it, or name it in [outputs]")
    return found


def _order(composition: Composition) -> list[str]:
    """Each part behind those that it needs. Raises CompositionError for circles and unknown
    names."""
    done: list[str] = []
    state: dict[str, bool] = {}  # False: entered, True: done
    for root in composition.parts:
        path = [(root, iter(needed(composition.parts[root])))]
        if root in state:
            continue
        state[root] = False
        while path:
            name, rest = path[-1]
            after = next(rest, None)
            if after is None:
                path.pop()
                state[name] = True
                done.append(name)
            elif after not in composition.parts:
                raise CompositionError(name, f"there is no part {after!r}")
            elif after not in state:
                state[after] = False
                path.append((after, iter(needed(composition.parts[after]))))
            elif not state[after]:
                names = [each for each, _ in path]
                circle = " -> ".join([*names[names.index(after) :], after])
                raise CompositionError(name, f"it waits for itself: {circle}")
    return done


def _spec(found: Checked, ref: Ref, where: str, who: str = "") -> TensorSpec:
    if ref.part and ref.part not in found.tensors:
        raise CompositionError(where, f"{who}there is no part {ref.part!r}")
    tensors = found.tensors[ref.part]
    if ref.tensor not in tensors:
        whose = f"part {ref.part!r}" if ref.part else "the composition"
        text = f"{who}{whose} has no {ref.tensor!r}: it has {', '.join(tensors)}"
        raise CompositionError(where, text)
    return tensors[ref.tensor]


def _rows(found: Checked, ref: Ref) -> int | None:
    """Rows at most, None where nobody says."""
    shape = found.tensors[ref.part][ref.tensor].shape
    if shape and shape[0] != -1:
        return shape[0]
    return found.rows.get(ref.part)


def _ask(part: AskPart, model: ModelSignature, found: Checked) -> None:
    where = part.name
    takes = {spec.name: spec for spec in model.inputs}
    if missing := sorted(takes.keys() ^ part.inputs.keys()):
        raise CompositionError(
            where, f"{part.model} takes {', '.join(takes)}; {missing[0]!r} is missing or unknown"
        )
    for name, ref in part.inputs.items():
        spec, wanted = _spec(found, ref, where), takes[name]
        if part.each_row and not (wanted.any_rank or spec.any_rank):
            if not spec.shape or wanted.shape[:1] not in ((1,), (-1,)):
                raise CompositionError(where, f"{name!r} has no axis 0 of rows: {wanted}")
            wanted = replace(wanted, shape=(-1, *wanted.shape[1:]))
        if not fits(spec, wanted):
            raise CompositionError(where, f"{name!r} of {part.model} is {wanted}, {ref} is {spec}")
        rows = _rows(found, ref)
        if part.each_row and rows is not None and rows > part.most:
            raise CompositionError(
                where, f"{ref} has up to {rows} rows, and at most {part.most} are asked for"
            )
    if part.each_row:
        if any(not s.shape or s.shape[0] not in (1, -1) for s in model.outputs if not s.any_rank):
            raise CompositionError(where, f"{part.model} does not answer by rows")
        found.tensors[where] = {
            spec.name: spec if spec.any_rank else replace(spec, shape=(-1, *spec.shape[1:]))
            for spec in model.outputs
        }
        found.rows[where] = part.most
    else:
        found.tensors[where] = {spec.name: spec for spec in model.outputs}
    if part.optional or _lacks(part, found):
        found.may_lack.add(where)


def _operate(part: OperatePart, found: Checked) -> None:
    operator = OPERATORS[part.operator]
    specs = {
        name: replace(_spec(found, ref, part.name), name=str(ref))
        for name, ref in part.inputs.items()
    }
    made = operator.made(part.name, specs, part.settings)
    found.tensors[part.name] = {spec.name: spec for spec in made}
    bounds = [_rows(found, ref) for ref in part.inputs.values()]
    if part.operator == "nms":
        found.rows[part.name] = part.settings["most"]
    elif part.operator == "crop":
        _bound(found, part.name, _rows(found, part.inputs["boxes"]))
    elif part.operator == "concat" and part.settings["axis"] == 0:
        _bound(found, part.name, None if None in bounds else sum(b for b in bounds if b))
    else:
        _bound(found, part.name, bounds[0])
    lacking = [ref.part in found.may_lack for ref in part.inputs.values()]
    if any(lacking) and (part.operator not in OF_THOSE_THERE or all(lacking)):
        found.may_lack.add(part.name)


def _nearest(part: NearestPart, composition: Composition, found: Checked) -> None:
    where, index = part.name, composition.indexes.get(part.index)
    if index is None:
        raise CompositionError(where, f"there is no index {part.index!r}")
    about = index if isinstance(index, IndexAbout) else index.about
    spec = _spec(found, part.of, where)
    if not fits(spec, TensorSpec("", "FP32", (-1, about.dimensions))) or spec.any_rank:
        wanted = f"FP32[?,{about.dimensions}]"
        raise CompositionError(where, f"index {part.index!r} takes {wanted}, {part.of} is {spec}")
    if part.k > about.count:
        raise CompositionError(
            where, f"`k` is {part.k}, and index {part.index!r} has {about.count} vectors"
        )
    rows = _rows(found, part.of)
    if rows is not None and rows > MOST_ROWS:
        raise CompositionError(where, f"{part.of} has {rows} rows, of {MOST_ROWS} at most")
    _bound(found, where, rows)
    found.tensors[where] = {made.name: made for made in about.makes(part.k)}
    if _lacks(part, found):
        found.may_lack.add(where)


def _bound(found: Checked, name: str, rows: int | None) -> None:
    if rows is not None and rows <= MOST_ROWS:
        found.rows[name] = rows


def _lacks(part: Part, found: Checked) -> bool:
    return any(ref.part in found.may_lack for ref in part.tensors())


def _one_of(part: ChoosePart | FirstPart, found: Checked) -> None:
    where, names = part.name, parts_asked(part)
    if isinstance(part, ChoosePart):
        by = _spec(found, part.by, where)
        if not by.any_rank and (not by.shape or (part.condition.needs_two(by.shape))):
            raise CompositionError(where, f"{part.by} is {by}: it has no {part.condition.measure}")
        if part.by.part in found.may_lack:
            raise CompositionError(where, f"{part.by} may be left out: nothing can be chosen by it")
    first, *others = (found.tensors[name] for name in names)
    made = dict(first)
    for name, tensors in zip(names[1:], others, strict=True):
        for key in made.keys() | tensors.keys():
            one, other = made.get(key), tensors.get(key)
            if one is None or other is None or not fits(one, other):
                raise CompositionError(
                    where, f"{names[0]} and {name} make other tensors: {key!r} is {one} and {other}"
                )
            made[key] = one if one.any_rank else replace(one, shape=_common(one, other))
    found.tensors[where] = made
    bounds = [found.rows[name] for name in names if name in found.rows]
    if len(bounds) == len(names):
        found.rows[where] = max(bounds)
    if all(name in found.may_lack for name in names):
        found.may_lack.add(where)


def fits(spec: TensorSpec, wanted: TensorSpec) -> bool:
    """Whether tensors of one can be those of the other, as far as both tell."""
    if spec.datatype != wanted.datatype:
        return False
    if spec.any_rank or wanted.any_rank:
        return True
    return len(spec.shape) == len(wanted.shape) and all(
        -1 in (one, other) or one == other
        for one, other in zip(spec.shape, wanted.shape, strict=True)
    )


def _common(one: TensorSpec, other: TensorSpec) -> tuple[int, ...]:
    return tuple(a if a == b else -1 for a, b in zip(one.shape, other.shape, strict=True))
