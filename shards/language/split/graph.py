"""A language model's graph: which tensors are state, where its layers end, what a stage rebuilds.

The *state* of a layer are its keys and values: `past_key_values.N.key|value` goes in and
`present.N.key|value` comes out. State stays on the node that runs the layer. *Shared* tensors are
those that depend on lengths, masks and positions alone: each stage rebuilds those that it reads.
Then one tensor is alive at the end of a layer, the hidden state [batch, s, width], and this alone
crosses a cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, helper

from shards.errors import ModelError, SplitError
from shards.graph.graph import Graph, names_read
from shards.graph.tensor_types import TensorType, infer_types

# As optimum, the builder of onnxruntime-genai and the exporters of Hugging Face name them.
_PAST = re.compile(r"past(?:_key_values)?[._](\d+)[._](key|value)")
_PRESENT = re.compile(r"present(?:_key_values)?[._](\d+)[._](key|value)")
TOKENS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
_INPUTS = frozenset({TOKENS, MASK, POSITIONS})
_SKIP_NORMS = {
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "LayerNormalization",
}
_TABLES = frozenset({"Gather", "GatherBlockQuantized"})  # rows by ids
_SAME_IDS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_WINDOW_CACHE = "sliding_window_cache"  # of GroupQueryAttention
# Inputs of GroupQueryAttention, and the names of their parts in a stage.
_LENGTHS = {5: "seqlens_k", 6: "total_sequence_length"}


@dataclass(frozen=True, slots=True)
class LayerState:
    """The names of one layer's state: what goes in, and what comes out, keys first."""

    past: tuple[str, str]
    present: tuple[str, str]


@dataclass(frozen=True)
class DecoderGraph:
    """A decoder, its nodes in the order of its layers.

    `graph.nodes` are all nodes that a stage does not rebuild. `shared` are the others, sorted, with
    the nodes of constants; `shared_names` all tensors that a stage may rebuild. `driving` are the
    tensors that a stage is given for that: its role ("mask", "positions", "seqlens_k",
    "total_sequence_length"), by name. `ends` are the positions behind each layer, in order, and
    `hidden` the one tensor alive there. The last end lies before the final norm and the head, and
    is missing where no such place was found.
    """

    graph: Graph
    types: dict[str, TensorType]
    shared: tuple[NodeProto, ...]
    shared_names: frozenset[str]
    driving: dict[str, str]
    states: tuple[LayerState, ...]
    ends: tuple[int, ...]
    hidden: tuple[str, ...]
    logits: str
    shares_buffers: bool

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.states)


def states_of(model: ModelProto) -> tuple[LayerState, ...]:
    """The states of a decoder's layers, in order; none for another kind of model.

    Raises ModelError for a model with states that are no pairs, or not those of a decoder alone.
    """
    pasts = _numbered(_PAST, (value.name for value in model.graph.input))
    presents = _numbered(_PRESENT, (value.name for value in model.graph.output))
    if not pasts and not presents:
        return ()
    if pasts.keys() != presents.keys() or {n for n, _ in pasts} != set(range(len(pasts) // 2)):
        raise ModelError(
            "past and present keys and values are no pairs of layers 0, 1, …: export the model "
            "with its cache (optimum: --task text-generation-with-past)"
        )
    return tuple(
        LayerState((pasts[n, "key"], pasts[n, "value"]), (presents[n, "key"], presents[n, "value"]))
        for n in range(len(pasts) // 2)
    )


def is_decoder(model: ModelProto) -> bool:
    """Whether a model is a language model with its cache: token ids and states go in."""
    names = {value.name for value in model.graph.input}
    return TOKENS in names and any(_PAST.fullmatch(name) for name in names)


def keep_whole_states(model: ModelProto) -> bool:
    """Let attention within a window read a cache of all tokens; whether that changed the message.

    A graph of onnxruntime-genai may want a cache as long as the window, which its runtime moves
    along. The window itself is another attribute, and stays: so the bits are those of the export,
    a session may be rolled back, and its keys and values take the memory of all of its tokens.
    """
    found = False
    states = {name for state in states_of(model) for name in (*state.past, *state.present)}
    for node in model.graph.node:
        for attribute in [a for a in node.attribute if a.name == _WINDOW_CACHE and a.i]:
            found = True
            node.attribute.remove(attribute)
    if found:
        for value in (*model.graph.input, *model.graph.output):
            if value.name in states:  # the length of a window would be another one than all tokens'
                value.type.tensor_type.shape.dim[2].Clear()
        kept = [each for each in model.graph.value_info if each.name not in states]
        del model.graph.value_info[:]
        model.graph.value_info.extend(kept)
    return found


def read_decoder(model: ModelProto) -> DecoderGraph:
    """Find states, shared tensors and the ends of layers in a fused model.

    A residual sum that was fused with the next layer's norm is made two nodes again, so that the
    results depend on no cut. Changes the message. Raises ModelError for graphs of another form.
    """
    states = states_of(model)
    odd = {value.name for value in model.graph.input} - _INPUTS
    odd -= {name for state in states for name in state.past}
    if odd:
        raise ModelError(
            f"a decoder takes {TOKENS}, {MASK}, {POSITIONS} and its states, this one also "
            f"{', '.join(sorted(odd))}: export a decoder alone"
        )
    unfuse_ends(model, states)
    graph = Graph.of(model)
    types = infer_types(graph)
    levels, shared_nodes = _levels(graph, states, types)
    shared_ids = {id(node) for node in shared_nodes}
    own = [node for node in graph.nodes if id(node) not in shared_ids]
    own.sort(key=lambda node: levels[id(node)])
    constants = list({id(node): node for node in graph.constant_nodes.values()}.values())
    ordered = Graph(
        graph.model,
        tuple(own),
        graph.constant_nodes,
        graph.initializers,
        graph.sparse,
        graph.inputs,
        graph.outputs,
    )
    shared = (*constants, *shared_nodes)
    driving = _driving(graph, shared_nodes)
    present = {name for state in states for name in state.present}
    logits = [name for name in graph.outputs if name not in present]
    if len(logits) != 1:
        raise ModelError(f"a decoder gives logits and states, this one {', '.join(logits)}")
    made = {name for node in shared for name in node.output if name}
    ends, hidden = _ends(ordered, [levels[id(n)] for n in own], states, made, types)
    return DecoderGraph(
        ordered,
        types,
        shared,
        frozenset(made) | set(graph.initializers) | set(graph.sparse),
        driving,
        states,
        ends,
        hidden,
        logits[0],
        all(n.op_type == "GroupQueryAttention" for n in own if _reads_past(n, states)),
    )


def unfuse_ends(model: ModelProto, states: Sequence[LayerState]) -> None:
    """Make the last residual sum of each layer a node of its own, where a norm took it in."""
    graph = Graph.of(model)
    levels, _ = _levels(graph, states, {})
    last = {
        levels[id(node)]: node.output[0]
        for node in graph.nodes
        if node.op_type in _SKIP_NORMS and levels.get(id(node), -1) >= 0
    }
    chosen = set(last.values())
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        nodes += _unfused(node) if node.output[0] in chosen else [_copy(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _copy(node: NodeProto) -> NodeProto:
    copied = NodeProto()
    copied.CopyFrom(node)
    return copied


def _unfused(node: NodeProto) -> list[NodeProto]:
    """A residual sum and a norm, for one node that did both."""
    simple = _SKIP_NORMS[node.op_type]
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    inputs = list(node.input) + [""] * 5
    at_bias = 3 if simple == "SimplifiedLayerNormalization" else 4
    scale, bias = inputs[2], inputs[at_bias]
    outputs = list(node.output) + [""] * 4
    total = outputs[3] or f"{node.output[0]}.sum"
    nodes = []
    if bias:
        nodes.append(helper.make_node("Add", [inputs[0], bias], [f"{total}.biased"]))
        inputs[0] = f"{total}.biased"
    # The hidden state of the layer first: the order decides no bit, and reads as the layer does.
    nodes.append(helper.make_node("Add", [inputs[0], inputs[1]], [total], name=f"{total}.add"))
    read = [total, scale]
    if simple == "LayerNormalization" and inputs[3]:
        read.append(inputs[3])
    norm = helper.make_node(simple, read, [outputs[0]], name=node.name, axis=-1, epsilon=epsilon)
    if simple == "SimplifiedLayerNormalization":
        norm.attribute.append(helper.make_attribute("stash_type", 1))
    nodes.append(norm)
    return nodes


def _numbered(pattern: re.Pattern[str], names: Iterable[str]) -> dict[tuple[int, str], str]:
    found = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match:
            found[int(match[1]), match[2]] = name
    return found


def _reads_past(node: NodeProto, states: Sequence[LayerState]) -> bool:
    return any(name in state.past for state in states for name in node.input)


def _levels(
    graph: Graph, states: Sequence[LayerState], types: dict[str, TensorType]
) -> tuple[dict[int, int], list[NodeProto]]:
    """The level of each node by `id`, and the shared nodes, which have none.

    A node's level is the highest layer whose state it depends on, -1 before any.
    """
    level: dict[str, int] = {TOKENS: -1}
    level |= {name: n for n, state in enumerate(states) for name in state.past}
    past = set(level) - {TOKENS}
    levels: dict[int, int] = {}
    shared: list[NodeProto] = []
    ids = token_ids(graph)
    width = _embedded_width(graph, types)
    for node in graph.nodes:
        read = [name for name in names_read(node) if name in level]
        if not read or (
            node.op_type == "Shape" and _is_size(read[0], past, ids, level, types, width)
        ):
            shared.append(node)
            continue
        height = max(level[name] for name in read)
        levels[id(node)] = height
        level |= dict.fromkeys((name for name in node.output if name), height)
    return levels, shared


def token_ids(graph: Graph) -> set[str]:
    """The names of the token ids: what comes in, and what the same ids are called behind nodes that
    change their type or the number of axes alone. GPT-2 and OPT have some before the embedding."""
    ids = {TOKENS}
    for node in graph.nodes:
        if node.op_type in _SAME_IDS and node.input[0] in ids:
            ids.add(node.output[0])
    return ids


def embeddings(graph: Graph) -> list[NodeProto]:
    """The nodes that take rows of a table by token ids. A quantized table has several: its codes,
    and their scales."""
    ids = token_ids(graph)
    return [n for n in graph.nodes if n.op_type in _TABLES and n.input[1] in ids]


def _embedded_width(graph: Graph, types: dict[str, TensorType]) -> int | None:
    """The elements of a token's embedding; None where it is not known."""
    widths = []
    for node in embeddings(graph):
        kind = types.get(node.output[0])
        if kind and kind.shape and isinstance(kind.shape[-1], int):
            widths.append(kind.shape[-1])
    return max(widths, default=None)


def embedding_rows(graph: Graph) -> list[int]:
    """The rows of the tables that token ids choose from, as far as the graph has them: ids beyond
    them cannot be computed."""
    rows = []
    for node in embeddings(graph):
        table = graph.initializers.get(node.input[0])
        axis = next((a.i for a in node.attribute if a.name in ("axis", "gather_axis")), 0)
        if table is not None and axis == 0 and table.dims:
            rows.append(int(table.dims[0]))
    return rows


def _is_size(
    name: str,
    past: set[str],
    ids: set[str],
    level: dict[str, int],
    types: dict[str, TensorType],
    width: int | None,
) -> bool:
    """Whether a stage knows this tensor's sizes by its own: tokens, states, hidden states.

    A hidden state is as wide as an embedding, or has an axis that is called as that of the ids. OPT
    projects its embeddings, so that both have widths of their own.
    """
    if name == TOKENS or name in past:
        return True
    kind = types.get(name)
    if kind is None or level[name] != -1:
        return False
    if name in ids:
        return len(kind.shape) == 2
    if len(kind.shape) != 3 or not isinstance(kind.shape[-1], int):
        return False
    steps = types[TOKENS].shape[1:2]
    return kind.shape[-1] == width or (steps == kind.shape[1:2] and isinstance(steps[0], str))


def _driving(graph: Graph, shared: Sequence[NodeProto]) -> dict[str, str]:
    """The tensors that drive the shared nodes, with their roles.

    Where all attention counts lengths itself, these lengths drive, and no mask is built.
    """
    made = {name for node in shared for name in node.output}
    lengths = {
        node.input[at]: role
        for node in graph.nodes
        if node.op_type == "GroupQueryAttention"
        for at, role in _LENGTHS.items()
        if len(node.input) > at and node.input[at] in made
    }
    return lengths | {MASK: "mask", POSITIONS: "positions"}


def _ends(
    graph: Graph,
    levels: Sequence[int],
    states: Sequence[LayerState],
    shared: set[str],
    types: dict[str, TensorType],
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The position behind each layer, and the hidden state there. Raises ModelError."""
    aside = {name for state in states for name in (*state.past, *state.present)}
    aside |= shared | {MASK, POSITIONS}
    ends: list[int] = []
    hidden: list[str] = []
    maker = ""
    for layer in range(len(states)):
        first = next((i for i, each in enumerate(levels) if each >= layer), len(levels))
        behind = next((i for i, each in enumerate(levels) if each > layer), len(levels))
        final = layer == len(states) - 1
        found = None
        for position in range(behind if not final else len(levels) - 1, first, -1):
            alive = [name for name in graph.live[position] if name not in aside]
            if len(alive) != 1 or graph.producer[alive[0]] < first:
                continue
            # Behind the last layer there are the final norm and the head, with no state to tell.
            if not final or graph.nodes[graph.producer[alive[0]]].op_type == maker:
                found = position, alive[0]
                break
        if found is None:
            if final:
                break
            raise ModelError(
                f"behind layer {layer} more than the hidden state is needed by later layers: "
                "the graph is of another form than decoders that exporters write"
            )
        maker = graph.nodes[graph.producer[found[1]]].op_type
        ends.append(found[0])
        hidden.append(found[1])
    for name in hidden:
        if types[name].datatype != "FP32":
            raise SplitError(f"hidden state {name!r} is {types[name].ort}: export it in FP32")
    return tuple(ends), tuple(hidden)
