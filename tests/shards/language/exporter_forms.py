"""Graphs with what sets some exports apart: made from the zoo's decoders, node by node."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper
from zoo.language.decoder_graph import DecoderShape, decoder

SHAPE = DecoderShape(layers=4, vocabulary=300, context=160)
WINDOW = 8


def _numbers(model: ModelProto, name: str, values: list[int]) -> str:
    model.graph.initializer.append(
        helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    )
    return name


def _insert(model: ModelProto, at: int, nodes: list[NodeProto]) -> None:
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*kept[:at], *nodes, *kept[at:]])


def _sized(model: ModelProto, of: str, name: str, width: str) -> list[NodeProto]:
    """Nodes that make `name`: the batch and the steps of `of`, and a width."""
    zero = _numbers(model, f"{name}.0", [0])
    one = _numbers(model, f"{name}.1", [1])
    return [
        helper.make_node("Shape", [of], [f"{name}.all"]),
        helper.make_node("Gather", [f"{name}.all", zero], [f"{name}.batch"]),
        helper.make_node("Gather", [f"{name}.all", one], [f"{name}.steps"]),
        helper.make_node("Concat", [f"{name}.batch", f"{name}.steps", width], [name], axis=0),
    ]


def as_gpt2() -> bytes:
    """optimum's GPT-2: ids are reshaped before the embedding, and hidden states before the head by
    the sizes of the ids."""
    model = onnx.load_from_string(decoder(SHAPE, form="optimum"))
    head = next(at for at, n in enumerate(model.graph.node) if "logits" in n.output)
    normed = model.graph.node[head].input[0]
    width = _numbers(model, "head.width", [SHAPE.width])
    reshape = helper.make_node("Reshape", [normed, "head.sizes"], ["head.rows"])
    model.graph.node[head].input[0] = "head.rows"
    _insert(model, head, [*_sized(model, "input_ids", "head.sizes", width), reshape])
    first = next(at for at, n in enumerate(model.graph.node) if "embedded" in n.output)
    model.graph.node[first].input[1] = "ids"
    any_batch = _numbers(model, "ids.batch", [-1])
    axis = _numbers(model, "ids.axis", [1])
    _insert(
        model,
        first,
        [
            helper.make_node("Shape", ["input_ids"], ["ids.shape"]),
            helper.make_node("Gather", ["ids.shape", axis], ["ids.steps"]),
            helper.make_node("Concat", [any_batch, "ids.steps"], ["ids.sizes"], axis=0),
            helper.make_node("Reshape", ["input_ids", "ids.sizes"], ["ids"]),
        ],
    )
    return bytes(model.SerializeToString())


def as_opt() -> bytes:
    """optimum's OPT: hidden states are flattened and brought back to sizes that nothing infers."""
    model = onnx.load_from_string(decoder(SHAPE, form="attention"))
    flat = _numbers(model, "flat", [-1, SHAPE.width])
    last = _numbers(model, "at.2", [2])
    ends = [f"layers.{n}.out.sum" for n in range(SHAPE.layers)]
    for name in ends:
        at = next(i for i, n in enumerate(model.graph.node) if name in n.output)
        model.graph.node[at].output[0] = f"{name}.raw"
        nodes = [
            helper.make_node("Shape", [f"{name}.raw"], [f"{name}.shape"]),
            helper.make_node("Gather", [f"{name}.shape", last], [f"{name}.width"]),
            *_sized(model, f"{name}.raw", f"{name}.sizes", f"{name}.width"),
            helper.make_node("Reshape", [f"{name}.raw", flat], [f"{name}.flat"]),
            helper.make_node("Reshape", [f"{name}.flat", f"{name}.sizes"], [name]),
        ]
        _insert(model, at + 1, nodes)
    return bytes(model.SerializeToString())


def with_windows(*, moved: bool = True, bits: int = 32) -> bytes:
    """The genai builder's Gemma, Qwen2 or gpt-oss with windows in every other layer. `moved`: these
    want a cache as long as the window, which is moved along. Some notes of types are wrong."""
    shape = DecoderShape(layers=4, vocabulary=300, context=160, bits=4 if bits == 4 else 32)
    model = onnx.load_from_string(decoder(shape))
    attention = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"]
    for node in attention[::2]:
        node.attribute.append(helper.make_attribute("local_window_size", WINDOW))
        if moved:
            node.attribute.append(helper.make_attribute("sliding_window_cache", 1))
    for value in (*model.graph.input, *model.graph.output):
        if moved and any(f".{n}." in value.name for n in range(0, SHAPE.layers, 2)):
            past = value.name.startswith("past")
            length = "past_sliding_length" if past else "total_sliding_length"
            value.type.tensor_type.shape.dim[2].dim_param = length
    wrong = helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, [1])
    model.graph.value_info.append(wrong)
    return bytes(model.SerializeToString())


FORMS: dict[str, Callable[[], bytes]] = {
    "gpt2": as_gpt2,
    "opt": as_opt,
    "windows": with_windows,
    "windows in 4 bits": lambda: with_windows(bits=4),
}
