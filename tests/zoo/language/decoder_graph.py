"""Language models of any shape with seeded random weights, in the forms that exporters write.

The shapes and operators are those of a real export, the text is not: weights are noise. Equal
calls give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from zoo.graph_writer import FLOAT, INT64, GraphWriter

MICROSOFT = "com.microsoft"
Form = Literal["genai", "optimum", "attention"]
# The operator set of each form, and the first IR version that may name it.
_OPSETS: dict[Form, tuple[int, int]] = {
    "genai": (21, 10),
    "optimum": (17, 9),
    "attention": (24, 11),
}
_INT32: int = TensorProto.INT32
_INT4_BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """The sizes of a Llama-like decoder (arXiv 2302.13971); `bias` and `tied` as in Qwen2.

    `packed`: one product makes queries, keys and values, as in Phi-3. `bits` is 4 for weights of
    products as `MatMulNBits`, which is a form of `genai` alone.
    """

    layers: int = 3
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feedforward: int = 128
    vocabulary: int = 256
    context: int = 256
    bias: bool = False
    tied: bool = False
    packed: bool = True
    bits: Literal[4, 32] = 32
    theta: float = 10_000.0


def decoder(shape: DecoderShape | None = None, *, form: Form = "genai", seed: int = 0) -> bytes:
    """A decoder as a serialized ModelProto.

    Inputs: `input_ids` INT64 [batch, s], `attention_mask` INT64 [batch, past + s], for `optimum`
    and `attention` also `position_ids` INT64 [batch, s], and for each layer N
    `past_key_values.N.key` and `.value` FP32 [batch, kv_heads, past, head_dim]. Outputs: `logits`
    FP32 [batch, s, vocabulary], and `present.N.key` and `.value`. `genai`: operators of ONNX
    Runtime, as its builder for generative models writes them (GroupQueryAttention with rotary
    embedding inside; past and present may share a buffer). `optimum`: plain operators of opset 17.
    `attention`: `Attention` of opset 24.
    """
    shape = shape or DecoderShape()
    return _DecoderWriter(shape, form, seed).model()


def decoder_weights(shape: DecoderShape, seed: int = 0) -> dict[str, np.ndarray]:
    """The seeded weights of a decoder by name, FP32, equal in all forms.

    `embed` [vocabulary, width]; for each layer `N.q`, `N.k`, `N.v`, `N.o`, `N.gate`, `N.up`,
    `N.down` [inputs, outputs], `N.norm.attention`, `N.norm.mlp` [width], with bias `N.q.bias` ...;
    `norm` [width]; `head` [width, vocabulary] unless it is tied.
    """
    random = np.random.default_rng(seed)

    def normal(inputs: int, outputs: int, gain: float = 1.0) -> np.ndarray:
        draw = random.standard_normal((inputs, outputs), dtype=np.float32)
        return draw * np.float32(gain / np.sqrt(inputs))

    def scale() -> np.ndarray:
        return random.uniform(0.8, 1.2, shape.width).astype(np.float32)

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Tied embeddings of full size would make each token its own successor.
    weights = {"embed": normal(1, shape.vocabulary * shape.width, 0.15 if shape.tied else 1.0)}
    weights["embed"] = weights["embed"].reshape(shape.vocabulary, shape.width)
    for n in range(shape.layers):
        weights |= {
            f"{n}.norm.attention": scale(),
            f"{n}.q": normal(shape.width, queries, 1.5),
            f"{n}.k": normal(shape.width, keys, 1.5),
            f"{n}.v": normal(shape.width, keys),
            f"{n}.o": normal(queries, shape.width),
            f"{n}.norm.mlp": scale(),
            f"{n}.gate": normal(shape.width, shape.feedforward),
            f"{n}.up": normal(shape.width, shape.feedforward),
            f"{n}.down": normal(shape.feedforward, shape.width),
        }
        if shape.bias:
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                weights[f"{n}.{name}.bias"] = random.normal(0, 0.1, size).astype(np.float32)
    weights["norm"] = scale()
    if not shape.tied:
        weights["head"] = normal(shape.width, shape.vocabulary, 2.0)
    return weights


def decoder_of(
    shape: DecoderShape, weights: dict[str, np.ndarray], *, form: Form = "genai"
) -> bytes:
    """A decoder with these weights (see `decoder_weights` for their names and shapes)."""
    return _DecoderWriter(shape, form, weights=weights).model()


def _int4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 4-bit weights and their scales, as `MatMulNBits` takes them (symmetric).

    weight: [inputs, outputs]. Returns UINT8 [outputs, blocks, 16] and FP32 [outputs * blocks].
    """
    inputs, outputs = weight.shape
    blocks = -(-inputs // _INT4_BLOCK)
    padded = np.zeros((blocks * _INT4_BLOCK, outputs), np.float32)
    padded[:inputs] = weight
    grouped = padded.T.reshape(outputs, blocks, _INT4_BLOCK)
    scales = np.abs(grouped).max(axis=2) / np.float32(7)
    whole = np.rint(grouped / np.where(scales == 0, 1, scales)[..., None])
    codes = (np.clip(whole, -8, 7) + 8).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales.reshape(-1).astype(np.float32)


class _DecoderWriter(GraphWriter):
    """Writes one decoder; the methods are its parts."""

    def __init__(
        self,
        shape: DecoderShape,
        form: Form,
        seed: int = 0,
        weights: dict[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__("decoder", seed=seed)
        self.shape, self.form = shape, form
        self.weights = decoder_weights(shape, seed) if weights is None else weights

    def model(self) -> bytes:
        shape = self.shape
        self.declare()
        self.prepare()
        embedded = self.constant("embed", self.weights["embed"])
        hidden = self.add("Gather", [embedded, "input_ids"], "embedded")
        normed = self.first_norm(hidden)
        for n in range(shape.layers):
            hidden, normed = self.layer(n, hidden, normed)
        if shape.tied and shape.bits == 32:
            head = self.add("Transpose", [embedded], "head.weight", perm=[1, 0])
            self.add("MatMul", [normed, head], "logits")
        else:
            weight = self.weights["embed"].T if shape.tied else self.weights["head"]
            self.product(normed, "logits", weight)
        opset, ir = _OPSETS[self.form]
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", opset)]
        if self.form == "genai":
            opsets.append(helper.make_opsetid(MICROSOFT, 1))
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=ir, producer_name="swarm-mesh"
        )
        if self.form != "genai":  # its operators are unknown to the checker
            onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))

    def declare(self) -> None:
        """All inputs and outputs, as exporters name them."""
        shape = self.shape

        def value(name: str, dims: list[Any], datatype: int = FLOAT) -> Any:
            return helper.make_tensor_value_info(name, datatype, ["batch", *dims])

        # The builder of genai leaves the size of a head open.
        size = "kv_cache_dim" if self.form == "genai" else shape.head_dim
        kv = [shape.kv_heads, "past", size]
        self._inputs.append(value("input_ids", ["s"], INT64))
        self._inputs.append(value("attention_mask", ["total"], INT64))
        if self.form != "genai":
            self._inputs.append(value("position_ids", ["s"], INT64))
        self._outputs.append(value("logits", ["s", shape.vocabulary]))
        for n in range(shape.layers):
            for part in ("key", "value"):
                self._inputs.append(value(f"past_key_values.{n}.{part}", kv))
                grown = [shape.kv_heads, "total", size]
                self._outputs.append(value(f"present.{n}.{part}", grown))

    def prepare(self) -> None:
        """Tensors that all layers share: lengths, tables of rotary embedding, masks."""
        shape = self.shape
        half = np.arange(0, shape.head_dim, 2, dtype=np.float32) / shape.head_dim
        frequencies = (1.0 / shape.theta**half).astype(np.float32)
        if self.form in ("genai", "attention"):
            angles = np.outer(np.arange(shape.context, dtype=np.float32), frequencies)
            self.constant("cos_cache", np.cos(angles).astype(np.float32))
            self.constant("sin_cache", np.sin(angles).astype(np.float32))
        if self.form == "genai":
            axis = self.constant("axis.1", np.array([1], np.int64))
            count = self.add("ReduceSum", ["attention_mask", axis], "mask.sum", keepdims=1)
            one = self.constant("one", np.array([1], np.int64))
            last = self.add("Sub", [count, one], "mask.last")
            self.add("Cast", [last], "seqlens_k", to=_INT32)
            sizes = self.add("Shape", ["attention_mask"], "mask.shape")
            index = self.constant("index.1", np.array(1, np.int64))
            total = self.add("Gather", [sizes, index], "mask.total", axis=0)
            self.add("Cast", [total], "total_sequence_length", to=_INT32)
            return
        self.causal_mask()
        if self.form == "optimum":
            self.rotary_tables(frequencies)

    def causal_mask(self) -> None:
        """`mask`: FP32 [batch, 1, s, total], 0 where a row may look, the smallest number else."""
        axis_0 = self.constant("axes.0", np.array([0], np.int64))
        sizes = self.add("Shape", ["attention_mask"], "mask.shape")
        index = self.constant("index.1", np.array(1, np.int64))
        total = self.add("Gather", [sizes, index], "mask.total", axis=0)
        zero = self.constant("zero", np.array(0, np.int64))
        step = self.constant("step", np.array(1, np.int64))
        columns = self.add("Range", [zero, total, step], "mask.columns")
        columns = self.add("Unsqueeze", [columns, axis_0], "mask.columns.row")
        rows_axis = self.constant("axes.-1", np.array([-1], np.int64))
        rows = self.add("Unsqueeze", ["position_ids", rows_axis], "mask.rows")
        later = self.add("Greater", [columns, rows], "mask.later")
        ones = self.constant("ones", np.array(1, np.int64))
        axis_1 = self.constant("axes.1", np.array([1], np.int64))
        padding = self.add("Less", ["attention_mask", ones], "mask.padding")
        padding = self.add("Unsqueeze", [padding, axis_1], "mask.padding.row")
        hidden = self.add("Or", [later, padding], "mask.hidden")
        smallest = self.constant("smallest", np.array(np.finfo(np.float32).min, np.float32))
        mask = self.add("Where", [hidden, smallest, self.scalar("none", 0.0)], "mask.3d")
        self.add("Unsqueeze", [mask, axis_1], "mask")

    def rotary_tables(self, frequencies: np.ndarray) -> None:
        """`cos` and `sin`: FP32 [batch, 1, s, head_dim], of the positions of this run."""
        inverse = self.constant("rotary.frequencies", frequencies[None, None, :])
        places = self.add("Cast", ["position_ids"], "rotary.places", to=FLOAT)
        axes = self.constant("axes.-1", np.array([-1], np.int64))
        places = self.add("Unsqueeze", [places, axes], "rotary.places.column")
        angles = self.add("MatMul", [places, inverse], "rotary.angles")
        both = self.add("Concat", [angles, angles], "rotary.both", axis=-1)
        axis_1 = self.constant("axes.1", np.array([1], np.int64))
        for name, operator in (("cos", "Cos"), ("sin", "Sin")):
            table = self.add(operator, [both], f"rotary.{name}")
            self.add("Unsqueeze", [table, axis_1], name)

    def layer(self, n: int, hidden: str, normed: str) -> tuple[str, str]:
        """One layer: its hidden state, and that state normed for the reader behind it."""
        name = f"layers.{n}"
        attended = self.attention(n, normed)
        attended = self.product(attended, f"{name}.o", self.weights[f"{n}.o"])
        hidden, normed = self.add_and_norm(hidden, attended, f"{name}.mlp", f"{n}.norm.mlp")
        grown = self.product(normed, f"{name}.gate", self.weights[f"{n}.gate"])
        raised = self.product(normed, f"{name}.up", self.weights[f"{n}.up"])
        sigmoid = self.add("Sigmoid", [grown], f"{name}.sigmoid")
        gate = self.add("Mul", [grown, sigmoid], f"{name}.silu")
        product = self.add("Mul", [gate, raised], f"{name}.gated")
        down = self.product(product, f"{name}.down", self.weights[f"{n}.down"])
        last = n == self.shape.layers - 1
        following = "norm" if last else f"{n + 1}.norm.attention"
        return self.add_and_norm(hidden, down, f"{name}.out", following)

    def attention(self, n: int, normed: str) -> str:
        """The attention of a layer, [batch, s, width] to [batch, s, heads * head_dim]."""
        parts = self.queries_keys_values(n, normed)
        past = [f"past_key_values.{n}.key", f"past_key_values.{n}.value"]
        present = [f"present.{n}.key", f"present.{n}.value"]
        name = f"layers.{n}.attention"
        shape = self.shape
        if self.form == "genai":
            caches = ["seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"]
            self._nodes.append(
                helper.make_node(
                    "GroupQueryAttention",
                    [*parts, *past, *caches],
                    [name, *present],
                    name=name,
                    domain=MICROSOFT,
                    num_heads=shape.heads,
                    kv_num_heads=shape.kv_heads,
                    do_rotary=1,
                )
            )
            return name
        query, key, value = (
            self.heads(tensor, count)
            for tensor, count in zip(
                parts, (shape.heads, shape.kv_heads, shape.kv_heads), strict=True
            )
        )
        query, key = (self.rotate(tensor) for tensor in (query, key))
        if self.form == "attention":
            node = helper.make_node(
                "Attention",
                [query, key, value, "mask", *past],
                [f"{name}.heads", *present],
                name=name,
            )
            self._nodes.append(node)
            return self.merge(f"{name}.heads", name)
        key = self.add("Concat", [past[0], key], present[0], axis=2)
        value = self.add("Concat", [past[1], value], present[1], axis=2)
        key, value = (self.repeat(tensor, name) for tensor in (key, value))
        turned = self.add("Transpose", [key], f"{name}.turned", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [query, turned], f"{name}.products")
        root = self.scalar("heads.root", float(np.sqrt(shape.head_dim)))
        scores = self.add("Div", [scores, root], f"{name}.scaled")
        scores = self.add("Add", [scores, "mask"], f"{name}.masked")
        shares = self.add("Softmax", [scores], f"{name}.shares", axis=-1)
        mixed = self.add("MatMul", [shares, value], f"{name}.mixed")
        return self.merge(mixed, name)

    def queries_keys_values(self, n: int, normed: str) -> list[str]:
        """The three parts, or one packed tensor and two empty names for `genai`."""
        shape, name = self.shape, f"layers.{n}"
        if self.form == "genai" and shape.packed:
            weight = np.concatenate([self.weights[f"{n}.{part}"] for part in "qkv"], axis=1)
            bias = None
            if shape.bias:
                bias = np.concatenate([self.weights[f"{n}.{part}.bias"] for part in "qkv"])
            packed = self.product(normed, f"{name}.qkv", weight, bias)
            return [packed, "", ""]
        return [
            self.product(
                normed,
                f"{name}.{part}",
                self.weights[f"{n}.{part}"],
                self.weights.get(f"{n}.{part}.bias"),
            )
            for part in "qkv"
        ]

    def heads(self, tensor: str, count: int) -> str:
        """[batch, s, count * head_dim] to [batch, count, s, head_dim]."""
        sizes = np.array([0, 0, count, self.shape.head_dim], np.int64)
        split = self.constant(f"heads.{count}", sizes)
        tensor = self.add("Reshape", [tensor, split], f"{tensor}.split")
        return self.add("Transpose", [tensor], f"{tensor}.heads", perm=[0, 2, 1, 3])

    def merge(self, tensor: str, name: str) -> str:
        """[batch, heads, s, head_dim] to [batch, s, heads * head_dim]."""
        tensor = self.add("Transpose", [tensor], f"{tensor}.tokens", perm=[0, 2, 1, 3])
        merged = self.constant("heads.merged", np.array([0, 0, -1], np.int64))
        return self.add("Reshape", [tensor, merged], f"{name}.merged")

    def rotate(self, tensor: str) -> str:
        """Rotary embedding (arXiv 2104.09864) of [batch, heads, s, head_dim]."""
        if self.form == "attention":
            inputs = [tensor, "cos_cache", "sin_cache", "position_ids"]
            return self.add("RotaryEmbedding", inputs, f"{tensor}.rotated")
        half = self.shape.head_dim // 2
        bounds = [np.array([at], np.int64) for at in (0, half, 2 * half)]
        start, middle, end = (self.constant(f"rotary.{b[0]}", b) for b in bounds)
        axis = self.constant("rotary.axis", np.array([3], np.int64))
        low = self.add("Slice", [tensor, start, middle, axis], f"{tensor}.low")
        high = self.add("Slice", [tensor, middle, end, axis], f"{tensor}.high")
        negative = self.add("Neg", [high], f"{tensor}.negative")
        crossed = self.add("Concat", [negative, low], f"{tensor}.crossed", axis=-1)
        kept = self.add("Mul", [tensor, "cos"], f"{tensor}.kept")
        turned = self.add("Mul", [crossed, "sin"], f"{tensor}.turned")
        return self.add("Add", [kept, turned], f"{tensor}.rotated")

    def repeat(self, tensor: str, name: str) -> str:
        """Each key or value head once for each query head of its group."""
        shape = self.shape
        group = shape.heads // shape.kv_heads
        if group == 1:
            return tensor
        axis = self.constant("axes.2", np.array([2], np.int64))
        wide = self.add("Unsqueeze", [tensor, axis], f"{tensor}.wide")
        tiles = self.constant("heads.tiles", np.array([1, 1, group, 1, 1], np.int64))
        wide = self.add("Tile", [wide, tiles], f"{tensor}.tiled")
        sizes = self.constant("heads.all", np.array([0, shape.heads, -1, shape.head_dim], np.int64))
        return self.add("Reshape", [wide, sizes], f"{tensor}.repeated")

    def first_norm(self, hidden: str) -> str:
        return self.norm(hidden, "layers.0.in", "0.norm.attention")

    def add_and_norm(self, hidden: str, more: str, name: str, scale: str) -> tuple[str, str]:
        """The sum, and the sum normed by the weight `scale`."""
        if self.form == "genai":
            weight = self.constant(scale, self.weights[scale])
            self._nodes.append(
                helper.make_node(
                    "SkipSimplifiedLayerNormalization",
                    [hidden, more, weight],
                    [f"{name}.normed", "", "", f"{name}.sum"],
                    name=f"{name}.norm",
                    domain=MICROSOFT,
                    epsilon=1e-6,
                )
            )
            return f"{name}.sum", f"{name}.normed"
        total = self.add("Add", [hidden, more], f"{name}.sum")
        return total, self.norm(total, name, scale)

    def norm(self, tensor: str, name: str, scale: str) -> str:
        """Root mean square normalization (arXiv 1910.07467)."""
        weight = self.constant(scale, self.weights[scale])
        normed = f"{name}.normed"
        if self.form == "genai":
            inputs = [tensor, weight]
            return self.add(
                "SimplifiedLayerNormalization", inputs, normed, axis=-1, epsilon=1e-6, stash_type=1
            )
        if self.form == "attention":
            return self.add("RMSNormalization", [tensor, weight], normed, axis=-1, epsilon=1e-6)
        square = self.add("Pow", [tensor, self.scalar("two", 2.0)], f"{name}.square")
        mean = self.add("ReduceMean", [square], f"{name}.mean", axes=[-1])
        raised = self.add("Add", [mean, self.scalar("epsilon", 1e-6)], f"{name}.raised")
        root = self.add("Sqrt", [raised], f"{name}.root")
        inverse = self.add("Div", [self.scalar("norm.one", 1.0), root], f"{name}.inverse")
        scaled = self.add("Mul", [tensor, inverse], f"{name}.scaled")
        return self.add("Mul", [weight, scaled], normed)

    def product(
        self, tensor: str, name: str, weight: np.ndarray, bias: np.ndarray | None = None
    ) -> str:
        """[batch, s, inputs] times [inputs, outputs], plus a bias."""
        made = name if bias is None else f"{name}.product"
        if self.shape.bits == 4:
            codes, scales = _int4(weight)
            inputs = [tensor, self.constant(f"{name}.q4", codes)]
            inputs.append(self.constant(f"{name}.scales", scales))
            node = helper.make_node(
                "MatMulNBits",
                inputs,
                [made],
                name=made,
                domain=MICROSOFT,
                K=weight.shape[0],
                N=weight.shape[1],
                bits=4,
                block_size=_INT4_BLOCK,
                accuracy_level=4,
            )
            self._nodes.append(node)
        else:
            self.add("MatMul", [tensor, self.constant(f"{name}.weight", weight)], made)
        if bias is None:
            return made
        return self.add("Add", [made, self.constant(f"{name}.bias", bias)], name)
