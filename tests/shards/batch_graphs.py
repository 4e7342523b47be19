"""Small graphs drawn at random, in which the rows of a batch stay apart or meet in many ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from shard_graphs import make, node, value

from shards.errors import ModelError
from shards.runtimes.ort import make_session

Arrays = Mapping[str, np.ndarray]
# What the rows of a batch are multiplied by. Rows of different scales are in one batch.
SCALES = (1.0, 255.0, 1e-3, 0.0, -1.0, 30.0, -255.0, 0.2)
OPSET = 18


@dataclass
class Draft:
    """A graph that grows by operators that run; the shapes of its tensors for a batch of 1."""

    draw: st.DrawFn
    inputs: dict[str, list[int]]
    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    count: int = 0

    def new(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """An operator; the name of its first output."""
        names = [self.new() for _ in range(outputs)]
        self.nodes.append(node(op, inputs, names, **attributes))
        return names[0]

    def store(self, array: Any, kind: Any = np.float32) -> str:
        name = self.new()
        self.stored[name] = np.asarray(array, kind)
        return name

    def integers(self, *numbers: int) -> str:
        return self.store(numbers, np.int64)

    def axis(self, tensor: str) -> int:
        return self.draw(st.integers(0, max(0, len(self.shapes[tensor]) - 1)))

    def floats(self, *shape: int) -> str:
        seed = self.draw(st.integers(0, 9))
        return self.store(np.random.default_rng(seed).standard_normal(shape))

    def model(self, outputs: Sequence[str]) -> ModelProto:
        return make(
            self.nodes,
            [value(name, ["N", *dims]) for name, dims in self.inputs.items()],
            [value(name, None) for name in outputs],
            self.stored,
            opset=OPSET,
        )


Grow = Callable[[Draft, str], str]


def _unary(d: Draft, t: str) -> str:
    return d.add(d.draw(st.sampled_from(["Relu", "Tanh", "Sigmoid", "Neg", "Abs"])), [t])


def _binary(d: Draft, t: str) -> str:
    other = d.draw(st.sampled_from(sorted(d.shapes)))
    return d.add(d.draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), [t, other])


def _with_constant(d: Draft, t: str) -> str:
    shape = [d.draw(st.sampled_from([1, n])) for n in d.shapes[t]]
    if shape and d.draw(st.integers(0, 5)) == 0:
        shape[0] = 3  # as many rows as a batch may have
    return d.add(d.draw(st.sampled_from(["Add", "Mul"])), [t, d.floats(*shape)])


def _reduce(d: Draft, t: str) -> str:
    op = d.draw(st.sampled_from(["ReduceMax", "ReduceMean", "ReduceSum", "ReduceL2", "ReduceMin"]))
    axes = [] if d.draw(st.integers(0, 4)) == 0 else [d.integers(d.axis(t))]
    return d.add(op, [t, *axes], keepdims=int(d.draw(st.booleans())))


def _along(d: Draft, t: str) -> str:
    op = d.draw(st.sampled_from(["Softmax", "LogSoftmax", "LpNormalization"]))
    return d.add(op, [t], axis=d.axis(t))


def _cumulate(d: Draft, t: str) -> str:
    return d.add("CumSum", [t, d.store(d.axis(t), np.int64)])


def _norm(d: Draft, t: str) -> str:
    axis = d.axis(t)
    ones = d.store(np.ones(d.shapes[t][axis:]))
    return d.add("LayerNormalization", [t, ones], axis=axis)


def _mean_variance(d: Draft, t: str) -> str:
    axes = sorted({d.axis(t), d.axis(t)})
    return d.add("MeanVarianceNormalization", [t], axes=axes)


def _instance_norm(d: Draft, t: str) -> str:
    channels = d.shapes[t][1]
    one = [d.store(np.ones(channels)), d.store(np.zeros(channels))]
    return d.add("InstanceNormalization", [t, *one])


def _transpose(d: Draft, t: str) -> str:
    return d.add("Transpose", [t], perm=d.draw(st.permutations(range(len(d.shapes[t])))))


def _size(d: Draft, t: str, axis: int) -> str:
    """The size of an axis, as exporters read it: a tensor [1]."""
    return d.add("Gather", [d.add("Shape", [t]), d.integers(axis)], axis=0)


def _reshape(d: Draft, t: str) -> str:
    shape = d.shapes[t]
    way = d.draw(st.sampled_from(["stored", "rows first", "last kept", "merged", "zeros"]))
    if way == "stored":
        cut = d.draw(st.integers(0, len(shape)))
        rest = int(np.prod(shape[cut:], dtype=np.int64))
        return d.add("Reshape", [t, d.integers(*d.draw(st.permutations([-1, max(1, rest)])))])
    if way == "rows first":
        target = d.add("Concat", [_size(d, t, 0), d.integers(-1)], axis=0)
    elif way == "last kept":
        target = d.add("Concat", [d.integers(-1), _size(d, t, len(shape) - 1)], axis=0)
    elif way == "merged":
        both = d.add("Mul", [_size(d, t, 0), _size(d, t, d.axis(t))])
        order = d.draw(st.permutations([both, d.integers(-1)]))
        target = d.add("Concat", order, axis=0)
    else:
        target = d.integers(0, -1)
    return d.add("Reshape", [t, target])


def _flatten(d: Draft, t: str) -> str:
    return d.add("Flatten", [t], axis=d.axis(t))


def _unsqueeze(d: Draft, t: str) -> str:
    return d.add("Unsqueeze", [t, d.integers(d.axis(t))])


def _squeeze(d: Draft, t: str) -> str:
    axes = [axis for axis, size in enumerate(d.shapes[t]) if size == 1]
    return d.add("Squeeze", [t, d.integers(d.draw(st.sampled_from(axes or [0])))])


def _product(d: Draft, t: str) -> str:
    return d.add("MatMul", [t, d.floats(d.shapes[t][-1], d.draw(st.integers(1, 3)))])


def _with_itself(d: Draft, t: str) -> str:
    order = list(range(len(d.shapes[t])))
    order[-2:] = order[-2:][::-1]
    return d.add("MatMul", [t, d.add("Transpose", [t], perm=order)])


def _gemm(d: Draft, t: str) -> str:
    turned = d.draw(st.integers(0, 1))
    width = d.shapes[t][0 if turned else 1]
    return d.add("Gemm", [t, d.floats(width, 3)], transA=turned)


def _einsum(d: Draft, t: str) -> str:
    equation = d.draw(st.sampled_from(["abc,abd->acd", "abc,dbc->abd", "abc,abc->bc", "ab,ab->a"]))
    return d.add("Einsum", [t, t], equation=equation)


def _gather(d: Draft, t: str) -> str:
    axis = d.axis(t)
    picks = d.draw(st.lists(st.integers(0, d.shapes[t][axis] - 1), min_size=1, max_size=3))
    return d.add("Gather", [t, d.integers(*picks)], axis=axis)


def _argmax(d: Draft, t: str) -> str:
    found = d.add("ArgMax", [t], axis=d.axis(t), keepdims=int(d.draw(st.booleans())))
    return d.add("Cast", [found], to=TensorProto.FLOAT)


def _embed(d: Draft, t: str) -> str:
    found = d.add("ArgMax", [t], axis=d.axis(t), keepdims=int(d.draw(st.booleans())))
    return d.add("Gather", [d.floats(8, 2), found])


def _pick_elements(d: Draft, t: str) -> str:
    axis = d.axis(t)
    found = d.add("ArgMax", [t], axis=d.axis(t), keepdims=1)
    return d.add("GatherElements", [t, found], axis=axis)


def _own_element(d: Draft, t: str) -> str:
    """Each row picks from itself, by its number in the batch."""
    numbers = _numbers(d, t)
    column = d.integers(1)
    inside = d.add("ArgMax", [t], axis=1, keepdims=0)
    if len(d.shapes[t]) > 2:
        inside = d.add("ReduceMin", [inside, d.integers(1)], keepdims=0)
    pair = [d.add("Unsqueeze", [numbers, column]), d.add("Unsqueeze", [inside, column])]
    if d.draw(st.integers(0, 3)) == 0:
        pair.reverse()
    return d.add("GatherND", [t, d.add("Concat", pair, axis=1)])


def _flat_element(d: Draft, t: str) -> str:
    """Each row picks from itself, by a place in all rows one behind the other."""
    size = d.shapes[t][1]
    offset = size + d.draw(st.sampled_from([0, 0, 0, 1]))
    start = d.add("Mul", [_numbers(d, t), d.integers(offset)])
    place = d.add("Add", [start, d.add("ArgMax", [t], axis=1, keepdims=0)])
    return d.add("Gather", [d.add("Reshape", [t, d.integers(-1)]), place])


def _numbers(d: Draft, t: str) -> str:
    count = d.add("Squeeze", [_size(d, t, 0), d.integers(0)])
    return d.add("Range", [d.store(0, np.int64), count, d.store(1, np.int64)])


def _numbered(d: Draft, t: str) -> str:
    """The number of a row as a value."""
    numbers = d.add("Cast", [_numbers(d, t)], to=TensorProto.FLOAT)
    ones = d.integers(-1, *[1] * (len(d.shapes[t]) - 1))
    return d.add("Add", [t, d.add("Reshape", [numbers, ones])])


def _counted(d: Draft, t: str) -> str:
    """A size as a value."""
    size = d.add("Cast", [_size(d, t, d.axis(t))], to=TensorProto.FLOAT)
    return d.add("Div", [t, size])


def _slice(d: Draft, t: str) -> str:
    axis, stride = d.axis(t), d.draw(st.sampled_from([1, 1, -1, 2]))
    bounds = (-1, -9999) if stride < 0 else (d.draw(st.sampled_from([0, 0, 1, -1])), 2**40)
    return d.add("Slice", [t, *(d.integers(n) for n in (*bounds, axis, stride))])


def _slice_by_size(d: Draft, t: str) -> str:
    end = _size(d, t, d.axis(t))
    return d.add("Slice", [t, d.integers(0), end, d.integers(d.axis(t))])


def _concat(d: Draft, t: str) -> str:
    other = d.draw(st.sampled_from(sorted(d.shapes)))
    return d.add("Concat", [t, other], axis=d.axis(t))


def _with_token(d: Draft, t: str) -> str:
    """A stored row in front of each sequence, as in vision transformers."""
    width = d.shapes[t][2]
    sizes = [_size(d, t, 0), d.integers(-1, -1)]
    shape = d.add("Concat", sizes, axis=0)
    ones = d.add("ConstantOfShape", [d.integers(3)], value=helper.make_tensor("v", 7, [1], [1]))
    target = d.add("Where", [d.add("Equal", [shape, d.integers(-1)]), ones, shape])
    token = d.add("Expand", [d.floats(1, 1, width), target])
    return d.add("Concat", [token, t], axis=1)


def _split(d: Draft, t: str) -> str:
    return d.add("Split", [t], 2, axis=d.axis(t), num_outputs=2)


def _top(d: Draft, t: str) -> str:
    return d.add("TopK", [t, d.integers(1)], 2, axis=d.axis(t))


def _expand(d: Draft, t: str) -> str:
    other = d.draw(st.sampled_from(sorted(d.shapes)))
    return d.add("Expand", [t, d.add("Shape", [other])])


def _tile(d: Draft, t: str) -> str:
    times = [d.draw(st.sampled_from([1, 1, 2])) for _ in d.shapes[t]]
    return d.add("Tile", [t, d.integers(*times)])


def _pad(d: Draft, t: str) -> str:
    pads = [d.draw(st.sampled_from([0, 0, 1])) for _ in range(2 * len(d.shapes[t]))]
    return d.add("Pad", [t, d.integers(*pads)])


def _where(d: Draft, t: str) -> str:
    larger = d.add("Greater", [t, d.floats(1)])
    return d.add("Where", [larger, t, d.draw(st.sampled_from(sorted(d.shapes)))])


def _branch(d: Draft, condition: str, t: str) -> str:
    yes, no = d.new(), d.new()
    factor = d.store(1 / 255)
    bodies = [
        helper.make_graph([node("Mul", [t, factor], [yes])], "yes", [], [value(yes, None)]),
        helper.make_graph([node("Identity", [t], [no])], "no", [], [value(no, None)]),
    ]
    return d.add("If", [condition], then_branch=bodies[0], else_branch=bodies[1])


def _if_data(d: Draft, t: str) -> str:
    return _branch(d, d.add("Greater", [d.add("ReduceMax", [t], keepdims=0), d.store(1.0)]), t)


def _if_size(d: Draft, t: str) -> str:
    size = d.add("Squeeze", [_size(d, t, d.axis(t)), d.integers(0)])
    limit = d.store(d.draw(st.integers(1, 4)), np.int64)
    return _branch(d, d.add(d.draw(st.sampled_from(["Equal", "Less"])), [size, limit]), t)


def _bounded(d: Draft, t: str) -> str:
    """Rows that meet at some scales only."""
    largest = d.add("ReduceMax", [t], keepdims=0)
    return d.add("Div", [t, d.add("Max", [largest, d.store(1.0)])])


def _dynamic(d: Draft, t: str) -> str:
    first = d.add("DynamicQuantizeLinear", [t], 3)
    number = int(first[1:])
    return d.add("DequantizeLinear", [first, f"t{number + 1}", f"t{number + 2}"])


def _static(d: Draft, t: str) -> str:
    zero = d.store(0, np.int8)
    small = d.add("QuantizeLinear", [t, d.store(0.05), zero])
    return d.add("DequantizeLinear", [small, d.store(0.05), zero])


def _conv(d: Draft, t: str) -> str:
    kernel = d.floats(2, d.shapes[t][1], *[1] * (len(d.shapes[t]) - 2))
    return d.add("Conv", [t, kernel])


def _pool(d: Draft, t: str) -> str:
    return d.add(d.draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"])), [t])


def _lstm(d: Draft, t: str) -> str:
    width = d.shapes[t][2]
    return d.add("LSTM", [t, d.floats(1, 8, width), d.floats(1, 8, 2)], hidden_size=2)


def _resize(d: Draft, t: str) -> str:
    scales = [d.draw(st.sampled_from([1.0, 1.0, 2.0])) for _ in d.shapes[t]]
    return d.add("Resize", [t, "", d.store(scales)], mode="nearest")


def _triangle(d: Draft, t: str) -> str:
    return d.add("Trilu", [t])


def _one_hot(d: Draft, t: str) -> str:
    found = d.add("ArgMax", [t], axis=d.axis(t), keepdims=0)
    return d.add("OneHot", [found, d.store(4, np.int64), d.store([0, 1])], axis=-1)


GROWS: tuple[Grow, ...] = (
    *(_unary, _unary, _binary, _binary, _with_constant, _with_constant, _reduce, _reduce, _along),
    *(_cumulate, _norm, _mean_variance, _instance_norm, _transpose, _transpose, _reshape, _reshape),
    *(_reshape, _flatten, _unsqueeze, _squeeze, _product, _product, _with_itself, _gemm, _einsum),
    *(_gather, _argmax, _embed, _pick_elements, _own_element, _flat_element, _numbered, _counted),
    *(_slice, _slice_by_size, _concat, _with_token, _split, _top, _expand, _tile, _pad, _where),
    *(_if_data, _if_size, _bounded, _dynamic, _static, _conv, _pool, _lstm, _resize, _triangle),
    *(_one_hot,),
)


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    """A model that runs on one row: inputs [N, …], and as many operators as drawn."""
    dims = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    inputs = {f"in{i}": dims for i in range(draw(st.integers(1, 2)))}
    draft = Draft(draw, inputs)
    draft.shapes = dict.fromkeys(inputs, (1, *dims))
    for _ in range(draw(st.integers(1, 6))):
        before = (list(draft.nodes), dict(draft.stored))
        last = sorted(draft.shapes, key=lambda n: (n.startswith("in"), -int(n.lstrip("int") or 0)))
        tensor = draw(st.sampled_from(last[:3]))
        made = _grown(draft, draw(st.sampled_from(GROWS)), tensor)
        if made is None:
            draft.nodes, draft.stored = before
    made_names = sorted(name for name in draft.shapes if not name.startswith("in"))
    if not made_names:
        made_names = [draft.add("Identity", ["in0"])]
    newest = max(made_names, key=lambda name: int(name[1:]))
    others = draw(st.lists(st.sampled_from(made_names), max_size=1))
    return draft.model(list(dict.fromkeys([newest, *others])))


def _grown(draft: Draft, grow: Grow, tensor: str) -> str | None:
    """The name of a new tensor of floats; None where the operator does not fit."""
    try:
        made = grow(draft, tensor)
        session = make_session(draft.model([made]).SerializeToString(), level="basic")
        [array] = session.run(None, row(draft.inputs, 0))
    except (ModelError, IndexError, ValueError):
        return None
    except Exception as error:  # pybind raises a dozen unrelated types here
        if "ONNXRuntime" not in str(error):
            raise
        return None
    if array.dtype != np.float32 or array.size > 4096 or array.size == 0:
        return None
    draft.shapes[made] = array.shape
    return made


def row(inputs: Mapping[str, Sequence[int]], number: int) -> dict[str, np.ndarray]:
    """One row of each input, of the scale of its number."""
    rng = np.random.default_rng(number)
    scale = SCALES[number % len(SCALES)]
    return {
        name: (rng.standard_normal((1, *dims)) * scale).astype(np.float32)
        for name, dims in inputs.items()
    }
