"""One input to time and to prove a model with: its owner's, or one that is sought.

A size that a model leaves open is chosen as a person would choose it. Cuts that are right for
pictures of 16 x 16 are wrong for those of 640 x 640. Then values are sought with which the model
runs: a rate of samples, a length, a range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from shards.errors import InputError, ModelError, RunTooLong
from shards.graph.graph import Graph
from shards.graph.source import subgraphs
from shards.graph.tensor_types import TensorType
from shards.runtimes.ort import Model, make_session
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.stage import check_feeds
from shards.runtimes.synthetic import random_feeds
from shards.specs import TensorSpec

Tensors = Mapping[str, np.ndarray]

RATE = 16_000  # samples a second of speech
# What to try for pictures, sound and sequences where the first choice does not run. Readers of text
# take lines of 48 or 32 pixels. A chunk of silero-vad has 512 samples, one of openWakeWord 1280;
# whisper takes 3000 frames, CLIP 77 tokens.
_PICTURES = (
    *((224, 224), (320, 320), (48, 320), (640, 640), (32, 320), (32, 100), (128, 128)),
    *((n, n) for n in (64, 32, 16, 8)),
)
_SOUNDS = (RATE, 512, 1280, 2 * RATE, 5 * RATE, 400, 128, 64, 16, 8, 1)
_TOKENS = (128, 16, 3000, 100, 77, 64, 224, 320, 8, 1)
# The model is tried for so many seconds.
_MOST_SECONDS = 30.0
_SOUND_WORDS = ("wav", "audio", "speech", "sound", "pcm", "samples", "signal")
_RATE_WORDS = ("sr", "rate", "sample_rate", "sampling_rate", "samplerate", "fs")
_LENGTH_WORDS = ("len", "lens", "length", "lengths", "size", "sizes")


@dataclass(frozen=True)
class WantedInputs:
    """What the owner says: whole arrays by name, or shapes of some inputs. `picture`: width and
    height that the file's metadata names, None where it names none."""

    arrays: Tensors | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    picture: tuple[int, int] | None = None


@dataclass(frozen=True)
class ExampleInputs:
    """Inputs that the model runs on; None and a reason where there are none. `said`: which sizes
    were chosen and by whom, "" where the model leaves none open."""

    feeds: dict[str, np.ndarray] | None
    reason: str = ""
    said: str = ""


@dataclass(frozen=True)
class InputHints:
    """What a graph tells about its inputs. `side` is that of a picture; `channels` those that its
    first convolution takes, 0 where there is none; `is_sound`: that one takes samples."""

    side: tuple[int, int]
    channels: int
    is_sound: bool


def hints_of(graph: Graph, types: Mapping[str, TensorType], wanted: WantedInputs) -> InputHints:
    """A picture has the size of the metadata, else 224 for what classifies or embeds, 640 for what
    answers about places on several scales, and 320 for other networks."""
    dims: tuple[int, ...] = ()
    sound = False
    for node in _nodes(graph.nodes):
        if node.op_type in ("Conv", "ConvInteger", "QLinearConv") and not dims:
            dims = _weight_dims(graph, node)
            sound = len(dims) == 3 and dims[1] == 1
    names = {node.op_type for node in graph.nodes}
    finds = bool(names & {"NonMaxSuppression", "TopK", "NonZero"})
    if wanted.picture is not None:
        width, height = wanted.picture
    elif all(len(types[name].shape) <= 2 for name in graph.outputs) and not finds:
        width = height = 224
    else:
        width = height = 640 if _stride(graph) >= 16 else 320
    return InputHints((height, width), dims[1] if len(dims) == 4 else 0, sound or "STFT" in names)


def _nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _nodes(inner.node)


def _weight_dims(graph: Graph, node: NodeProto) -> tuple[int, ...]:
    name = node.input[3 if node.op_type == "QLinearConv" else 1]
    made_by = graph.constant_nodes.get(name)
    if made_by is not None and made_by.op_type == "DequantizeLinear":
        name = made_by.input[0]
    stored = graph.initializers.get(name)
    return () if stored is None else tuple(stored.dims)


def _stride(graph: Graph) -> int:
    """The most input pixels, along an axis, that one place of a tensor of this graph stands for."""
    strides: dict[str, int] = {}
    for node in graph.nodes:
        own = next((a.ints[0] for a in node.attribute if a.name == "strides" and a.ints), 1)
        if not (node.op_type.endswith("Pool") or node.op_type.endswith("Conv")):
            own = 1
        at = max((strides.get(name, 1) for name in node.input), default=1) * int(own)
        strides.update(dict.fromkeys(node.output, at))
    return max(strides.values(), default=1)


def find_example(
    model: Model | None,
    inputs: Sequence[TensorType],
    hints: InputHints,
    wanted: WantedInputs | None = None,
) -> ExampleInputs:
    """Inputs of batch 1 that the model runs on; see `WantedInputs`. Without arrays values are
    seeded.

    Those are preferred that give no NaN. Without a model the first choice is taken untried. Raises
    ModelError where the owner's example or shapes do not fit, or the model does not run on the
    example.
    """
    wanted = wanted or WantedInputs()
    session = None if model is None else make_session(model, level="basic")
    specs = [kind.spec() for kind in inputs]
    if wanted.arrays:
        feeds = _given(specs, wanted.arrays)
        reason, _ = _try(session, feeds)
        if reason:
            raise ModelError(f"the model does not run on the example: {reason}")
        return ExampleInputs(feeds, said=_said(specs, feeds, "as the example"))
    _check_shapes(specs, wanted.shapes)
    until = time.monotonic() + _MOST_SECONDS
    reason = ""
    first: Tensors | None = None  # ran, and gave what is no number
    last: Tensors = {}
    for feeds in _tried(inputs, hints, wanted.shapes):
        problem, is_number = _try(session, feeds)
        if problem:
            reason = reason or problem
            last = last or feeds
        elif is_number:
            return ExampleInputs(feeds, said=_said(specs, feeds, _by(wanted)))
        else:
            first = first or feeds
            break
        if time.monotonic() > until:
            break
    # Values of another scale: what gives no number for one may give one for another.
    for feeds in _scales(first or last):
        problem, is_number = _try(session, feeds)
        if not problem and (is_number or first is None):
            return ExampleInputs(feeds, said=_said(specs, feeds, _by(wanted)))
        if time.monotonic() > until:
            break
    if first is not None:
        return ExampleInputs(dict(first), said=_said(specs, first, _by(wanted)))
    return ExampleInputs(None, reason)


def _try(session: object, feeds: Tensors) -> tuple[str, bool]:
    """Why the model does not run, "" where it does; and whether its answers are numbers. Raises
    `RunTooLong`."""
    if session is None:
        return "", True
    try:
        answers = session.run(None, dict(feeds))  # type: ignore[attr-defined]
    except RunTooLong:  # and others like it may take as long
        raise
    except Exception as error:  # pybind raises a dozen unrelated types here
        return reason_of(error), False
    floats = [each for each in answers if isinstance(each, np.ndarray) and each.dtype.kind == "f"]
    return "", not any(np.isnan(each).any() for each in floats)


def _given(specs: Sequence[TensorSpec], arrays: Tensors) -> dict[str, np.ndarray]:
    """The owner's arrays; of many samples the first one. Raises ModelError."""
    # One of several inputs may be empty, such as a state that begins without entries.
    if not any(array.size for array in arrays.values()):
        raise ModelError("the example is empty, and proves nothing: give one of one row")
    try:
        check_feeds(specs, arrays)
    except InputError as error:
        raise ModelError(f"the model does not run on the example: {error}") from error
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    has_rows = all(spec.shape[:1] == (-1,) for spec in specs)
    is_of_many = has_rows and len(counts) == 1 and max(counts) > 1
    return {name: array[:1] if is_of_many else array for name, array in arrays.items()}


def _check_shapes(specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise ModelError for a shape of no input, or one that an input cannot have."""
    named = {spec.name: spec for spec in specs}
    for name, shape in shapes.items():
        spec = named.get(name)
        if spec is None:
            raise ModelError(f"--shape {name}: the inputs are {', '.join(map(str, named))}")
        fits = spec.any_rank or (
            len(shape) == len(spec.shape)
            and all(want in (-1, size) for want, size in zip(spec.shape, shape, strict=True))
        )
        if not fits:
            raise ModelError(f"--shape {name}={'x'.join(map(str, shape))}: the input is {spec}")


def _by(wanted: WantedInputs) -> str:
    if wanted.shapes:
        return "as --shape says"
    chosen = "as the file's metadata says" if wanted.picture else "chosen"
    return f"{chosen}: --shape INPUT=1x2x3 or --example FILE.npz says another"


def _said(specs: Sequence[TensorSpec], feeds: Tensors, by: str) -> str:
    """Sizes of inputs whose axes are open, besides the first one of rows."""
    free = [spec.name for spec in specs if spec.any_rank or -1 in spec.shape[1:]]
    free += [s.name for s in specs if s.shape == (-1,) and feeds[s.name].size > 1]
    shown = ", ".join(f"{name} {list(feeds[name].shape)}" for name in free)
    return f"timed and proved with {shown} ({by})" if shown else ""


def _tried(
    inputs: Sequence[TensorType], hints: InputHints, shapes: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, np.ndarray]]:
    """Seeded inputs: for each choice of sizes those of several kinds of values."""
    specs = [kind.spec() for kind in inputs]
    is_open = any(kind.any_rank or None in _known(kind.shape) for kind in inputs)
    sides = [hints.side, *_PICTURES]
    for number in range(max(len(sides), len(_SOUNDS), len(_TOKENS)) if is_open else 1):
        side = sides[min(number, len(sides) - 1)]
        sound = _SOUNDS[min(number, len(_SOUNDS) - 1)]
        tokens = _TOKENS[min(number, len(_TOKENS) - 1)]
        # The shapes of rows, sequences, pictures, a list and one number, where any rank fits.
        n = tokens
        ranks = ((1, n), (1, 3, *side), (1, n, n), (n,), ())
        for rank in ranks if any(kind.any_rank for kind in inputs) else ((),):
            sized = _sizes(inputs, hints, shapes, (side, sound, tokens, rank))
            yield from _valued(specs, sized)


def _known(shape: Sequence[int | str | None]) -> list[int | None]:
    """Sizes as they are declared, without the first one of rows."""
    return [dim if isinstance(dim, int) else None for dim in shape[1:]]


def _sizes(
    inputs: Sequence[TensorType],
    hints: InputHints,
    shapes: Mapping[str, Sequence[int]],
    choice: tuple[tuple[int, int], int, int, tuple[int, ...]],
) -> dict[str, tuple[int, ...]]:
    """A shape for each input. Axes of one name have one size in all inputs."""
    sides, sound, tokens, rank = choice
    named = {
        dim: size
        for kind in inputs
        for dim, size in zip(kind.shape, shapes.get(kind.name, ()), strict=False)
        if isinstance(dim, str)
    }
    made: dict[str, tuple[int, ...]] = {}
    for kind in inputs:
        if kind.name in shapes or kind.any_rank:
            made[kind.name] = tuple(shapes.get(kind.name, rank))
            continue
        sizes = _own_sizes(kind, hints, sides, sound, tokens)
        shape = []
        for axis, (dim, size) in enumerate(zip(kind.shape, sizes, strict=True)):
            if isinstance(dim, int):
                shape.append(dim)
            elif isinstance(dim, str):
                shape.append(named.setdefault(dim, size))
            else:
                shape.append(1 if axis == 0 else size)
        made[kind.name] = tuple(shape)
    return made


def _own_sizes(
    kind: TensorType, hints: InputHints, sides: tuple[int, int], sound: int, tokens: int
) -> tuple[int, ...]:
    """What each axis of an input has where it is open."""
    shape, rank = kind.shape, len(kind.shape)
    is_float = "float" in kind.ort or "double" in kind.ort
    if rank == 4 and (is_float or kind.ort == "tensor(uint8)"):
        if isinstance(shape[3], int) and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
            return (1, *_picture(shape[1:3], sides), 3)
        return (1, hints.channels or 3, *_picture(shape[2:], sides))
    word = kind.name.lower()
    is_sound = rank == 2 or hints.is_sound or any(each in word for each in _SOUND_WORDS)
    if is_float and is_sound and rank in (1, 2, 3) and not isinstance(shape[-1], int):
        return (*(1,) * (rank - 1), sound)
    if rank and isinstance(shape[0], int) and shape[0] != 1:
        # Such as a state [layers, batch, width]: its rows lie along the second axis.
        return (1, 1, *(tokens,) * (rank - 2))[:rank]
    return (1, *(tokens,) * (rank - 1))[:rank]


def _picture(declared: Sequence[int | str | None], sides: tuple[int, int]) -> tuple[int, int]:
    """Height and width. A line of text of a fixed height is 320 wide, as readers of text take."""
    height, width = declared
    if isinstance(height, int) and not isinstance(width, int):
        return height, 320 if sides[1] in (224, 640) else sides[1]
    return sides


def _valued(
    specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[dict[str, np.ndarray]]:
    """Seeded inputs of these shapes: integers of several meanings."""
    usual = random_feeds(specs, shapes)
    longest = max((max(shape, default=1) for shape in shapes.values()), default=1)
    told = {}
    for name, array in usual.items():
        words = name.lower().replace(".", "_").replace("/", "_").split("_")
        if array.dtype.kind in "iu" and array.dtype.itemsize > 1 and array.ndim < 2:
            if name.lower() in _RATE_WORDS or set(words) & set(_RATE_WORDS):
                told[name] = np.full_like(array, RATE)
            elif any(each in word for word in words for each in _LENGTH_WORDS):
                told[name] = np.full_like(array, longest)
    usual |= told
    yield usual
    has_integers = any(
        each.dtype.kind in "iu" and each.dtype.itemsize > 1 and name not in told
        for name, each in usual.items()
    )
    if has_integers:
        for number in (1, longest, RATE, 0):
            yield {n: _filled(each, number, n in told) for n, each in usual.items()}


def _scales(feeds: Tensors) -> Iterator[dict[str, np.ndarray]]:
    """The inputs, their floats small, from 0 to 1, from 0 to 255, all 1, all 0."""
    if any(each.dtype.kind == "f" for each in feeds.values()):
        for scale, shift in ((0.1, 0.0), (0.25, 0.5), (64.0, 128.0), (0.0, 1.0), (0.0, 0.0)):
            yield {name: _scaled(each, scale, shift) for name, each in feeds.items()}


def _scaled(array: np.ndarray, scale: float, shift: float) -> np.ndarray:
    """Floats of another scale, none below 0 where they are shifted; others as they are."""
    if array.dtype.kind != "f":
        return array
    moved = array.astype(np.float64) * scale + shift
    return np.asarray(np.abs(moved) if shift else moved).astype(array.dtype)


def _filled(array: np.ndarray, number: int, is_told: bool) -> np.ndarray:
    """Small integer inputs that nothing is known about, all with one value: a rate or a length."""
    is_wide = array.dtype.kind in "iu" and array.dtype.itemsize > 1
    if is_told or not is_wide or (number > 1 and array.ndim > 1):
        return array
    return np.full_like(array, min(number, np.iinfo(array.dtype).max))
