"""A BERT-like transformer encoder, of which each cut carries more than one tensor."""

from __future__ import annotations

import math

import numpy as np

from zoo.graph_writer import FLOAT, INT64, GraphWriter


def transformer_encoder(
    layers: int = 4,
    d_model: int = 256,
    heads: int = 4,
    seq: int = 128,
    *,
    feedforward: int | None = None,
    vocabulary: int = 1000,
    classes: int = 10,
    batch: int | None = None,
    seed: int = 0,
) -> bytes:
    """`layers` post-norm encoder layers (arXiv 1706.03762, with GELU as in arXiv 1810.04805).

    Inputs `tokens` INT64 [batch, seq] in 0..vocabulary-1 and `attention_mask` INT64 [batch, seq],
    1 = attend, 0 = ignore; output `logits` FP32 [batch, classes], read from the first token.
    Between layers two tensors are alive: `layer_<k>.hidden` FP32 [batch, seq, d_model] and
    `mask_bias` FP32 [batch, 1, 1, seq]. `feedforward` is 4 * d_model unless given.
    """
    writer = _EncoderWriter("transformer_encoder", batch=batch, seed=seed)
    tokens = writer.input("tokens", [seq], INT64)
    mask = writer.input("attention_mask", [seq], INT64)
    bias = writer.mask_bias(mask)
    # Positions weigh as much as words: otherwise no output would depend on the order of tokens.
    words = writer.weight("words", [vocabulary, d_model], 1, gain=1.0)
    positions = writer.weight("positions", [1, seq, d_model], 1, gain=1.0)
    embedded = writer.add("Gather", [words, tokens], "embedding.words")
    embedded = writer.add("Add", [embedded, positions], "embedding.sum")
    hidden = writer.normalization(embedded, "embedding", d_model)
    for layer in range(1, layers + 1):
        name = f"layer_{layer}"
        attended = writer.attention(hidden, bias, f"{name}.attention", d_model, heads, seq)
        summed = writer.add("Add", [hidden, attended], f"{name}.attention.sum")
        hidden = writer.normalization(summed, f"{name}.attended", d_model)
        inner = feedforward or 4 * d_model
        grown = writer.gelu(writer.project(hidden, f"{name}.grow", d_model, inner))
        shrunk = writer.project(grown, f"{name}.shrink", inner, d_model)
        summed = writer.add("Add", [hidden, shrunk], f"{name}.sum")
        hidden = writer.normalization(summed, f"{name}.hidden", d_model)
    first = writer.constant("first_token", np.array(0, np.int64))
    pooled = writer.add("Gather", [hidden, first], "pooled", axis=1)
    writer.output(writer.dense(pooled, "logits", d_model, classes, gain=1.0), [classes])
    return writer.to_bytes()


class _EncoderWriter(GraphWriter):
    """A graph writer that knows the parts of a transformer encoder."""

    def mask_bias(self, mask: str) -> str:
        """A bias on the scores before the softmax: 0 where the mask is 1, -10,000 where it is 0.

        It is finite, so that a row with only padding stays finite (it attends evenly).
        """
        axes = self.constant("mask.axes", np.array([1, 2], np.int64))
        kept = self.add("Cast", [mask], "mask.kept", to=FLOAT)
        ignored = self.add("Sub", [self.scalar("mask.one", 1.0), kept], "mask.ignored")
        penalty = self.add("Mul", [ignored, self.scalar("mask.penalty", -1e4)], "mask.scaled")
        return self.add("Unsqueeze", [penalty, axes], "mask_bias")

    def attention(
        self, hidden: str, bias: str, name: str, d_model: int, heads: int, seq: int
    ) -> str:
        """Multi-head self-attention, from [batch, seq, d_model] to [batch, seq, d_model]."""
        # 0 copies the input's batch axis, whatever it is.
        split = self.constant("heads.split", np.array([0, seq, heads, d_model // heads], np.int64))
        merged = self.constant("heads.merged", np.array([0, seq, d_model], np.int64))
        parts = []
        for part, order in (
            ("query", (0, 2, 1, 3)),
            ("key", (0, 2, 3, 1)),
            ("value", (0, 2, 1, 3)),
        ):
            tensor = self.project(hidden, f"{name}.{part}", d_model, d_model)
            tensor = self.add("Reshape", [tensor, split], f"{name}.{part}.split")
            parts.append(self.add("Transpose", [tensor], f"{name}.{part}.heads", perm=list(order)))
        query, key, value = parts
        scores = self.add("MatMul", [query, key], f"{name}.products")
        scale = self.scalar("heads.scale", 1 / math.sqrt(d_model // heads))
        scores = self.add("Mul", [scores, scale], f"{name}.scaled")
        scores = self.add("Add", [scores, bias], f"{name}.masked")
        weights = self.add("Softmax", [scores], f"{name}.weights", axis=-1)
        mixed = self.add("MatMul", [weights, value], f"{name}.mixed")
        mixed = self.add("Transpose", [mixed], f"{name}.tokens", perm=[0, 2, 1, 3])
        mixed = self.add("Reshape", [mixed, merged], f"{name}.merged")
        return self.project(mixed, f"{name}.output", d_model, d_model)

    def project(self, tensor: str, name: str, inputs: int, outputs: int) -> str:
        """[batch, seq, inputs] times drawn weights [inputs, outputs], plus a small drawn bias."""
        weight = self.weight(f"{name}.weight", [inputs, outputs], inputs, gain=1.0)
        bias = self.weight(f"{name}.bias", [outputs], 1, gain=0.01)
        product = self.add("MatMul", [tensor, weight], f"{name}.product")
        return self.add("Add", [product, bias], name)

    def normalization(self, tensor: str, name: str, d_model: int) -> str:
        """LayerNormalization over the last axis, with scale near 1 and shift near 0."""
        scale = self.random.uniform(0.8, 1.2, d_model).astype(np.float32)
        inputs = [
            tensor,
            self.constant(f"{name}.scale", scale),
            self.weight(f"{name}.shift", [d_model], 1, gain=0.01),
        ]
        return self.add("LayerNormalization", inputs, name, axis=-1, epsilon=1e-5)

    def gelu(self, tensor: str) -> str:
        """x * (1 + erf(x / sqrt 2)) / 2, spelled out: opset 17 has no Gelu (arXiv 1606.08415)."""
        scaled = self.add(
            "Mul", [tensor, self.scalar("gelu.inverse_root", math.sqrt(0.5))], f"{tensor}.scaled"
        )
        erf = self.add("Erf", [scaled], f"{tensor}.erf")
        raised = self.add("Add", [erf, self.scalar("gelu.one", 1.0)], f"{tensor}.raised")
        product = self.add("Mul", [tensor, raised], f"{tensor}.doubled")
        return self.add("Mul", [product, self.scalar("gelu.half", 0.5)], f"{tensor}.gelu")
