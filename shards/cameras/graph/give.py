"""Give a model its task: told from its shapes, and baked into its graph where that can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from shards.cameras.graph.bake import bake
from shards.cameras.heads import PictureInput, picture_input
from shards.cameras.seen import Said, SeenGraph
from shards.cameras.task import MOST_LABELS, MOST_LETTERS, Task
from shards.cameras.wish import Wish, settle
from shards.errors import ModelError, SplitError, TaskError
from shards.graph.graph import SIGMOID, SOFTMAX, Graph, made_by
from shards.graph.metadata import MOST_TEXT, Metadata, picture_sides
from shards.graph.source import PROTOBUF_LIMIT, read_model, weight_bytes
from shards.graph.tensor_types import infer_types
from shards.parts import ModelWithAddition
from shards.runtimes.ort import make_session
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.synthetic import random_feeds
from shards.specs import TensorSpec, spec_of

# What a model's metadata tells about its outputs.


def said_by(model: ModelProto) -> Said:
    """What the metadata says. An entry that cannot be read is left out, and named in `notes`."""
    said = Metadata(model)
    end = " end2end" if said.text("end2end") == "True" else ""
    return Said(
        task=said.text("task").strip().lower(),
        labels=said.read("names", _names, ()),
        size=said.read("imgsz", picture_sides, None),
        normalise="0..1" if said.text("author") == "Ultralytics" else "",
        stride=said.read("stride", _stride, 0),
        points=said.read("kpt_shape", _points, None),
        head=said.text("head")[:MOST_LETTERS] + end,
        letters=tuple(said.text("character")[:MOST_TEXT].splitlines())[:MOST_LABELS],
        notes=tuple(said.notes),
    )


def _names(value: object) -> tuple[str, ...]:
    """Of {0: 'person', 1: …} or ['person', …]. Raises ValueError."""
    if isinstance(value, dict):
        if sorted(value) != list(range(len(value))):
            raise ValueError("classes are counted from 0")
        value = [value[index] for index in range(len(value))]
    if not isinstance(value, list | tuple) or len(value) > MOST_LABELS:
        raise ValueError("no list of names")
    names = tuple(str(name).strip() for name in value)
    if not all(0 < len(name) <= MOST_LETTERS for name in names):
        raise ValueError("an empty or a long name")
    return names


def _stride(value: object) -> int:
    """The largest. Raises ValueError."""
    strides = value if isinstance(value, list | tuple) else [value]
    if not strides or not all(isinstance(each, int) and 0 < each <= 1024 for each in strides):
        raise ValueError("no pixels")
    return int(max(strides))


def _points(value: object) -> tuple[int, int]:
    """How many keypoints, and numbers of each. Raises ValueError."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("no two numbers")
    count, each = value
    if not isinstance(count, int) or not 0 < count <= 1024 or each not in (2, 3):
        raise ValueError("no keypoints")
    return count, each


_SIZES = "orig_target_sizes"  # width and height, [n, 2]


def add_task(wish: Wish, model: ModelProto, lighter: bytes | None) -> ModelWithAddition:
    """As of `shards.parts.Addition`. Raises TaskError, and SplitError where the lighter model has
    another task."""
    model, told, notes = give_task(model, wish)
    if lighter is not None and told.baked:
        other, task, _ = give_task(read_model(lighter)[0], wish)
        if task.preprocess != told.preprocess or not task.baked or task.labels != told.labels:
            raise SplitError(
                f"the lighter model takes {task.preprocess}, the model {told.preprocess}: "
                "--no-bake leaves both as they are"
            )
        lighter = bytes(other.SerializeToString())
    return ModelWithAddition(model, lighter, {"task": told.to_doc()}, notes)


def give_task(model: ModelProto, wish: Wish) -> tuple[ModelProto, Task, tuple[str, ...]]:
    """The model as it is to be split, its task, and notes for its owner. model: in the normal form
    of `shards.graph.source`; it is changed.

    A detector works on one picture at a time, so its batch axis becomes 1. Raises TaskError where
    shapes do not tell the task.
    """
    sizes = _sizes_of(model) if wish.kind == "detect" else None
    graph = Graph.of(model)
    types = infer_types(graph)
    said = said_by(model)
    wish = _sized(wish, [types[name].spec() for name in graph.inputs], said)
    picture = picture_input([types[name].spec() for name in graph.inputs], wish.size)
    (declared,) = model.graph.input
    sides = (picture.height, picture.width)
    is_first = picture.layout == "nchw"
    inner = (picture.channels, *sides) if is_first else (*sides, picture.channels)
    _fix(declared, {axis + 1: side for axis, side in enumerate(inner)})
    if wish.kind == "detect":
        _fix(declared, {0: 1})
    if sizes is not None:
        pair = np.array([[picture.width, picture.height]], np.int64)
        sizes.CopyFrom(numpy_helper.from_array(pair, _SIZES))
    outputs, values = _run(model, _at_one(declared), picture)
    seen = SeenGraph(
        constant=frozenset(name for name in graph.outputs if graph.is_constant(name)),
        softmax=made_by(graph, SOFTMAX),
        sigmoid=made_by(graph, SIGMOID),
        values=values,
        said=said,
    )
    task, notes = settle(
        wish, [TensorSpec(picture.name, picture.datatype, _at_one(declared))], outputs, seen
    )
    if sizes is not None:
        notes = (*notes, f"{_SIZES} is the size of the model's picture: boxes become shares of it")
    if not wish.bake:
        return model, task, notes
    try:
        return bake(model, task), replace(task, baked=True), notes
    except TaskError:
        raise
    except ModelError as error:
        return model, task, (*notes, f"not baked into the graph: {error}")


def _sizes_of(model: ModelProto) -> TensorProto | None:
    """The second input of RT-DETR and D-FINE, the size of the picture that boxes are told for, now
    a constant of the model: to be given a value. None where there is no such input."""
    inputs = model.graph.input
    found = [value for value in inputs if value.name == _SIZES]
    if len(inputs) != 2 or not found or found[0].type.tensor_type.elem_type != TensorProto.INT64:
        return None
    inputs.remove(found[0])
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 2), np.int64), _SIZES))
    return model.graph.initializer[-1]


def _sized(wish: Wish, inputs: list[TensorSpec], said: Said) -> Wish:
    """With the size that the file's metadata says, where the picture may have any and the owner
    says none."""
    is_free = len(inputs) == 1 and len(inputs[0].shape) == 4 and -1 in inputs[0].shape[2:]
    return replace(wish, size=said.size) if wish.size is None and said.size and is_free else wish


def _run(
    model: ModelProto, shape: tuple[int, ...], picture: PictureInput
) -> tuple[list[TensorSpec], dict[str, np.ndarray]]:
    """The outputs with the shapes that they have for one picture, and their values in two runs,
    [2, …]: a run tells both, where inference would leave shapes open. An output whose shape
    depends on the picture has no values. Raises ModelError."""
    if weight_bytes(model) >= PROTOBUF_LIMIT:
        raise TaskError("the model is too large to be run whole: split it without --task")
    session = make_session(model.SerializeToString(), level="basic")
    names = [output.name for output in session.get_outputs()]
    wanted = [TensorSpec(picture.name, picture.datatype, shape)]
    try:
        one, other = (session.run(names, random_feeds(wanted, seed=seed)) for seed in (0, 1))
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise TaskError(
            f"the model does not run on one picture {list(shape)}: {reason_of(error)}"
        ) from error
    specs = [spec_of(name, array) for name, array in zip(names, one, strict=True)]
    values = {
        name: np.concatenate([first, second])
        for name, first, second in zip(names, one, other, strict=True)
        if first.ndim and first.shape == second.shape and len(first) == 1
    }
    return specs, values


def _fix(value: ValueInfoProto, sizes: dict[int, int]) -> None:
    """Give axes of a model's input these sizes."""
    dims = value.type.tensor_type.shape.dim
    for axis, size in sizes.items():
        dims[axis].Clear()
        dims[axis].dim_value = size


def _at_one(value: ValueInfoProto) -> tuple[int, ...]:
    """The shape at one picture."""
    dims = value.type.tensor_type.shape.dim
    return (1, *(int(dim.dim_value) for dim in list(dims)[1:]))
