"""A range of a decoder's layers as a model of its own, which keeps no state between runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from shards.errors import SplitError
from shards.graph.graph import names_read
from shards.graph.layer_range import assemble, check_weights
from shards.language.split.graph import TOKENS, DecoderGraph, LayerState

# The input of a last stage that says from which row on logits are wanted; -1 is the last row.
LOGITS_FROM = "logits_from"
_SCALAR_LENGTH = "total_sequence_length"


@dataclass(frozen=True, slots=True)
class DecoderPart:
    """The layers `[first, last)` of a decoder: nodes `[start, end)` of its graph.

    `receives` is token ids or a hidden state, `sends` a hidden state or logits. `states` are those
    of its layers. `feeds` names the inputs beside these, by role: "mask", "positions", "seqlens_k",
    "total_sequence_length", "logits_from".
    """

    start: int
    end: int
    layers: tuple[int, int]
    receives: str
    sends: str
    states: tuple[LayerState, ...]
    feeds: dict[str, str]


def whole_model(decoder: DecoderGraph) -> bytes | None:
    """The whole decoder as it is cut; None if it is too large for one file."""
    model = decoder.graph.model
    try:
        check_weights(model, "all layers")
    except SplitError:
        return None
    return bytes(model.SerializeToString(deterministic=True))


def extract_part(decoder: DecoderGraph, first: int, last: int) -> tuple[DecoderPart, bytes]:
    """The model of the layers between two of the decoder's ends.

    0 is the beginning, k the end of the k-th layer; `last` above the number of ends takes all that
    is left. Raises SplitError when another tensor than the hidden state would have to cross, or
    when the weights are too large for one file.
    """
    ends = [0, *decoder.ends]
    whole = last > len(decoder.ends)
    start, end = ends[first], len(decoder.graph) if whole else ends[last]
    receives = TOKENS if first == 0 else decoder.hidden[first - 1]
    sends = decoder.logits if whole else decoder.hidden[last - 1]
    states = decoder.states[first : decoder.layers if whole else last]
    title = f"layers [{first}, {decoder.layers if whole else last})"
    nodes = list(decoder.graph.nodes[start:end])
    feeds: dict[str, str] = {}
    if whole and len(decoder.ends) == decoder.layers:
        sliced = _with_last_rows(decoder, nodes, start)
        if sliced is not None:
            nodes = sliced
            feeds[LOGITS_FROM] = LOGITS_FROM
    own = {name for node in nodes for name in node.output}
    own |= {receives, LOGITS_FROM, *_ROWS} | {name for state in states for name in state.past}
    read = [name for node in nodes for name in names_read(node) if name not in own]
    weights, copies = _rebuilt(decoder, read, own, receives, states, feeds, title)
    model = assemble(
        decoder.graph,
        weights,
        (*copies, *nodes),
        [_declared(decoder, name) for name in _inputs(receives, states, feeds)],
        [_declared(decoder, name) for name in (sends, *(p for s in states for p in s.present))],
    )
    model.graph.initializer.extend(_constants(nodes, copies))
    check_weights(model, title)
    part = DecoderPart(
        start,
        end,
        (first, decoder.layers if whole else last),
        receives,
        sends,
        states,
        feeds,
    )
    return part, bytes(model.SerializeToString(deterministic=True))


def _inputs(receives: str, states: Iterable[LayerState], feeds: dict[str, str]) -> list[str]:
    return [receives, *feeds.values(), *(past for state in states for past in state.past)]


def _declared(decoder: DecoderGraph, name: str) -> ValueInfoProto:
    """The declaration of an input or output of a part."""
    if name == LOGITS_FROM:
        return helper.make_tensor_value_info(name, TensorProto.INT64, [1])
    if decoder.driving.get(name) == _SCALAR_LENGTH:
        return helper.make_tensor_value_info(name, TensorProto.INT32, [])
    if decoder.driving.get(name) == "seqlens_k":
        return helper.make_tensor_value_info(name, TensorProto.INT32, ["batch"])
    return decoder.types[name].value_info()


def _rebuilt(
    decoder: DecoderGraph,
    names: Iterable[str],
    own: set[str],
    receives: str,
    states: tuple[LayerState, ...],
    feeds: dict[str, str],
    title: str,
) -> tuple[set[str], list[NodeProto]]:
    """The stored tensors and the shared nodes that `names` need; adds to `feeds`."""
    maker = {name: node for node in decoder.shared for name in node.output if name}
    weights: set[str] = set()
    needed: dict[str, list[NodeProto]] = {}
    stack, seen = list(names), set()
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in decoder.driving:
            feeds[decoder.driving[name]] = name
        elif name in maker:
            node = maker[name]
            outside = [n for n in node.input if n in decoder.graph.producer and n not in own]
            outside = [n for n in outside if n not in decoder.driving and n not in maker]
            if node.op_type == "Shape" and outside:
                needed[node.output[0]] = _sizes(node, decoder, receives, states, title)
            else:
                needed[node.output[0]] = [node]
                stack += names_read(node)
        elif name in decoder.shared_names:
            weights.add(name)
        elif name not in own:
            raise SplitError(f"{title} read {name!r}, which is no hidden state and no state")
    ordered = [
        copied
        for node in decoder.shared
        if node.output[0] in needed
        for copied in needed[node.output[0]]
    ]
    return weights, ordered


def _sizes(
    node: NodeProto,
    decoder: DecoderGraph,
    receives: str,
    states: tuple[LayerState, ...],
    title: str,
) -> list[NodeProto]:
    """Nodes that make a `Shape` of a tensor of another stage from one of this stage."""
    read, made = node.input[0], node.output[0]
    past = {name for state in decoder.states for name in state.past}
    attributes = {a.name: a.i for a in node.attribute}
    if read in past:
        if not states:
            raise SplitError(f"{title} read the size of a state, and have none")
        return [helper.make_node("Shape", [states[0].past[0]], [made], **attributes)]
    sizes = decoder.types[read].shape
    if len(sizes) == 3 and sizes[-1] == decoder.types[receives].shape[-1]:
        return [helper.make_node("Shape", [receives], [made], **attributes)]
    if len(sizes) == 2 and attributes:
        ends = {key: at + 2 if at < 0 else min(at, 2) for key, at in attributes.items()}
        return [helper.make_node("Shape", [receives], [made], **({"end": 2} | ends))]
    whole, rows, width = f"{made}.whole", f"{made}.rows", f"{made}.width"
    nodes = [
        helper.make_node("Shape", [receives], [whole]),
        helper.make_node(
            "Slice", [whole, "swarm.0", "swarm.2"], [rows if len(sizes) == 3 else made]
        ),
    ]
    if len(sizes) == 2:
        return nodes
    # Batch and steps are those of this stage, and the width is another one.
    nodes += [
        helper.make_node("Constant", [], [width], value_ints=[sizes[-1]]),
        helper.make_node("Concat", [rows, width], [f"{made}.all"], axis=0),
    ]
    first, last = attributes.get("start", 0), attributes.get("end", 3)
    bounds = [f"{made}.first", f"{made}.last"]
    nodes += [
        helper.make_node("Constant", [], [name], value_ints=[at])
        for name, at in zip(bounds, (first, last), strict=True)
    ]
    return [*nodes, helper.make_node("Slice", [f"{made}.all", *bounds], [made])]


def _with_last_rows(
    decoder: DecoderGraph, nodes: list[NodeProto], start: int
) -> list[NodeProto] | None:
    """The nodes with one between that takes the rows whose logits are wanted (axis 1).

    It stands behind the last layer, and behind nodes that reshape to all tokens' sizes, as GPT-2
    has one. None where more than one tensor is needed behind that.
    """
    begin = max(0, decoder.ends[-1] - start)
    sizes = {n for node in decoder.shared if node.op_type != "Constant" for n in node.output}
    reading = [at for at in range(begin, len(nodes)) if sizes & {*names_read(nodes[at])}]
    place = reading[-1] + 1 if reading else begin
    made = {name for node in nodes[:place] for name in node.output}
    made.add(decoder.hidden[-1])
    alive = {name for node in nodes[place:] for name in names_read(node) if name in made}
    if len(alive) != 1:
        return None
    (rows,) = alive
    kept = f"{rows}.kept"
    slicing = helper.make_node("Slice", [rows, LOGITS_FROM, "swarm.last", "swarm.1"], [kept])
    behind = []
    for node in nodes[place:]:
        copied = NodeProto()
        copied.CopyFrom(node)
        for at, name in enumerate(copied.input):
            if name == rows:
                copied.input[at] = kept
        behind.append(copied)
    return [*nodes[:place], slicing, *behind]


_ROWS = {
    "swarm.0": np.array([0], np.int64),
    "swarm.1": np.array([1], np.int64),
    "swarm.2": np.array([2], np.int64),
    "swarm.last": np.array([np.iinfo(np.int64).max], np.int64),
}


def _constants(*groups: Iterable[NodeProto]) -> list[TensorProto]:
    """The constants of this module that the nodes read."""
    read = {name for nodes in groups for node in nodes for name in node.input}
    return [numpy_helper.from_array(array, name) for name, array in _ROWS.items() if name in read]
