"""Give a model its task: told from its shapes, and baked into its graph where that can be."""

from __future__ import annotations

from dataclasses import replace

from onnx import ModelProto, ValueInfoProto

from shards.errors import ModelError, TaskError
from shards.graph.graph import Graph
from shards.graph.source import PROTOBUF_LIMIT, weight_bytes
from shards.graph.tensor_types import infer_types
from shards.runtimes.ort import make_session
from shards.runtimes.ort_errors import reason_of
from shards.runtimes.synthetic import random_feeds
from shards.specs import TensorSpec, spec_of
from shards.task.heads import PictureInput, picture_input
from shards.task.task import Task
from shards.task.wish import Wish, settle
from shards.task_graph.bake import bake


def give_task(model: ModelProto, wish: Wish) -> tuple[ModelProto, Task, tuple[str, ...]]:
    """The model as it is to be split, its task, and notes for its owner. model: in the normal form
    of `shards.graph.source`; it is changed.

    A detector works on one picture at a time, so its batch axis becomes 1. Raises TaskError where
    shapes do not tell the task.
    """
    graph = Graph.of(model)
    types = infer_types(graph)
    picture = picture_input([types[name].spec() for name in graph.inputs], wish.size)
    (declared,) = model.graph.input
    sides = (picture.height, picture.width)
    is_first = picture.layout == "nchw"
    inner = (picture.channels, *sides) if is_first else (*sides, picture.channels)
    _fix(declared, {axis + 1: side for axis, side in enumerate(inner)})
    if wish.kind == "detect":
        _fix(declared, {0: 1})
    made_by = {name: node for node in model.graph.node for name in node.output}
    task, notes = settle(
        wish,
        [TensorSpec(picture.name, picture.datatype, _at_one(declared))],
        _outputs(model, _at_one(declared), picture),
        constant=frozenset(name for name in graph.outputs if graph.is_constant(name)),
        softmax=frozenset(
            name for name, node in made_by.items() if node.op_type in ("Softmax", "Sigmoid")
        ),
    )
    if not wish.bake:
        return model, task, notes
    try:
        return bake(model, task), replace(task, baked=True), notes
    except TaskError:
        raise
    except ModelError as error:
        return model, task, (*notes, f"not baked into the graph: {error}")


def _outputs(model: ModelProto, shape: tuple[int, ...], picture: PictureInput) -> list[TensorSpec]:
    """The outputs with the shapes that they have for one picture: a run tells them, where
    inference would leave many open. Raises ModelError."""
    if weight_bytes(model) >= PROTOBUF_LIMIT:
        raise TaskError("the model is too large to be run whole: split it without --task")
    session = make_session(model.SerializeToString(), level="basic")
    names = [output.name for output in session.get_outputs()]
    feeds = random_feeds([TensorSpec(picture.name, picture.datatype, shape)])
    try:
        arrays = session.run(names, feeds)
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise TaskError(
            f"the model does not run on one picture {list(shape)}: {reason_of(error)}"
        ) from error
    return [spec_of(name, array) for name, array in zip(names, arrays, strict=True)]


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
