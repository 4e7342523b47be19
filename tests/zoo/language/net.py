"""A small Llama-like language model in plain numpy, with its gradient.

Tensors have the names and layouts of `decoder_weights`, so that exporting copies them unchanged. It
works in the dtype of its weights: FP32 to train, FP64 to check gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.numpy_network import Array, Parameter

EPSILON = 1e-6  # of the norms, as in the exported graph
Cache = dict[str, Any]


class LanguageNet:
    """Tied embeddings, norms by root mean square, rotary positions, shared key heads, SwiGLU.

    shape has the fields of `DecoderShape`; weights are those of `decoder_weights` with `tied`.
    """

    def __init__(self, shape: Any, weights: Mapping[str, Array]) -> None:
        self.shape = shape
        self.tensors = {name: Parameter(value.copy()) for name, value in weights.items()}
        half = np.arange(0, shape.head_dim, 2, dtype=np.float32) / shape.head_dim
        angles = np.outer(np.arange(shape.context, dtype=np.float32), 1.0 / shape.theta**half)
        dtype = self.tensors["embed"].value.dtype
        self._cos, self._sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)

    def parameters(self) -> list[Parameter]:
        return list(self.tensors.values())

    def forward(self, tokens: NDArray[np.int64]) -> Array:
        """Logits [batch * s, vocabulary] of token ids [batch, s]."""
        self._size = tokens.shape
        self._tokens = tokens.reshape(-1)
        x: Array = self._value("embed")[self._tokens]
        self._layers: list[Cache] = []
        for n in range(self.shape.layers):
            cache: Cache = {}
            x = x + self._attention(n, x, cache)
            x = x + self._feedforward(n, x, cache)
            self._layers.append(cache)
        self._last: Cache = {}
        normed = self._norm("norm", x, self._last)
        self._normed = normed
        logits: Array = normed @ self._value("embed").T
        return logits

    def backward(self, gradient: Array) -> None:
        """Store the gradients of all tensors, from the gradient of the logits."""
        head = gradient.T @ self._normed
        dx = self._norm_back("norm", gradient @ self._value("embed"), self._last)
        for n in reversed(range(self.shape.layers)):
            cache = self._layers[n]
            dx = dx + self._feedforward_back(n, dx, cache)
            dx = dx + self._attention_back(n, dx, cache)
        order = np.argsort(self._tokens, kind="stable")
        present, starts = np.unique(self._tokens[order], return_index=True)
        head[present] += np.add.reduceat(dx[order], starts, axis=0)
        self.tensors["embed"].gradient = head

    # --- parts ------------------------------------------------------------------------

    def _attention(self, n: int, x: Array, cache: Cache) -> Array:
        shape, (batch, s) = self.shape, self._size
        normed = self._norm(f"{n}.norm.attention", x, cache)
        group = shape.heads // shape.kv_heads
        q = self._rotated(self._heads(normed @ self._value(f"{n}.q"), shape.heads))
        k = self._rotated(self._heads(normed @ self._value(f"{n}.k"), shape.kv_heads))
        v = self._heads(normed @ self._value(f"{n}.v"), shape.kv_heads)
        # The query heads of one key head are rows of one product.
        q = q.reshape(batch, shape.kv_heads, group * s, shape.head_dim)
        shares = q @ k.swapaxes(2, 3)
        shares *= shape.head_dim**-0.5
        shares = shares.reshape(batch, shape.heads, s, s)
        shares += np.triu(np.full((s, s), -1e9, x.dtype), 1)
        shares -= shares.max(axis=-1, keepdims=True)
        np.exp(shares, out=shares)
        shares /= shares.sum(axis=-1, keepdims=True)
        shares = shares.reshape(batch, shape.kv_heads, group * s, s)
        mixed = self._tokens_of((shares @ v).reshape(batch, shape.heads, s, shape.head_dim))
        cache |= {"normed": normed, "q": q, "k": k, "v": v, "shares": shares, "mixed": mixed}
        made: Array = mixed @ self._value(f"{n}.o")
        return made

    def _attention_back(self, n: int, dy: Array, cache: Cache) -> Array:
        shape, (batch, s) = self.shape, self._size
        q, k, v, shares = cache["q"], cache["k"], cache["v"], cache["shares"]
        self._learn(f"{n}.o", cache["mixed"], dy)
        dmixed = self._heads(dy @ self._value(f"{n}.o").T, shape.heads).reshape(q.shape)
        dscores = dmixed @ v.swapaxes(2, 3)
        dscores -= np.einsum("bkij,bkij->bki", dscores, shares)[..., None]
        dscores *= shares
        dscores *= shape.head_dim**-0.5
        dq = (dscores @ k).reshape(batch, shape.heads, s, shape.head_dim)
        parts = {
            "q": self._tokens_of(self._rotated(dq, back=True)),
            "k": self._tokens_of(self._rotated(dscores.swapaxes(2, 3) @ q, back=True)),
            "v": self._tokens_of(shares.swapaxes(2, 3) @ dmixed),
        }
        dnormed = np.zeros_like(dy)
        for part, gradient in parts.items():
            self._learn(f"{n}.{part}", cache["normed"], gradient)
            dnormed += gradient @ self._value(f"{n}.{part}").T
        return self._norm_back(f"{n}.norm.attention", dnormed, cache)

    def _feedforward(self, n: int, x: Array, cache: Cache) -> Array:
        normed = self._norm(f"{n}.norm.mlp", x, cache)
        gate, up = normed @ self._value(f"{n}.gate"), normed @ self._value(f"{n}.up")
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
        silu = gate * sigmoid
        both = silu * up
        cache |= {"fed": normed, "gate": gate, "up": up, "sigmoid": sigmoid, "silu": silu}
        cache["both"] = both
        made: Array = both @ self._value(f"{n}.down")
        return made

    def _feedforward_back(self, n: int, dy: Array, cache: Cache) -> Array:
        self._learn(f"{n}.down", cache["both"], dy)
        dboth = dy @ self._value(f"{n}.down").T
        dup = dboth * cache["silu"]
        sigmoid, silu = cache["sigmoid"], cache["silu"]
        dgate = dboth * cache["up"] * (sigmoid + silu * (1.0 - sigmoid))
        self._learn(f"{n}.up", cache["fed"], dup)
        self._learn(f"{n}.gate", cache["fed"], dgate)
        dnormed = dup @ self._value(f"{n}.up").T + dgate @ self._value(f"{n}.gate").T
        return self._norm_back(f"{n}.norm.mlp", dnormed, cache)

    def _norm(self, name: str, x: Array, cache: Cache) -> Array:
        inverse = 1.0 / np.sqrt(np.einsum("nd,nd->n", x, x) / x.shape[1] + EPSILON)
        unit = x * inverse[:, None]
        cache[name] = unit, inverse
        made: Array = unit * self._value(name)
        return made

    def _norm_back(self, name: str, dy: Array, cache: Cache) -> Array:
        unit, inverse = cache[name]
        self.tensors[name].gradient = np.einsum("nd,nd->d", dy, unit)
        dunit = dy * self._value(name)
        along = np.einsum("nd,nd->n", dunit, unit) / dy.shape[1]
        made: Array = (dunit - unit * along[:, None]) * inverse[:, None]
        return made

    def _rotated(self, x: Array, *, back: bool = False) -> Array:
        """Rotary embedding of [batch, heads, s, head_dim]; `back` turns the other way."""
        half, s = x.shape[3] // 2, x.shape[2]
        cos, sin = self._cos[:s], self._sin[:s] * (-1 if back else 1)
        low, high = x[..., :half], x[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def _heads(self, x: Array, count: int) -> Array:
        return x.reshape(*self._size, count, -1).swapaxes(1, 2)

    def _tokens_of(self, x: Array) -> Array:
        return x.swapaxes(1, 2).reshape(len(self._tokens), -1)

    def _value(self, name: str) -> Array:
        return self.tensors[name].value

    def _learn(self, name: str, inputs: Array, gradient: Array) -> None:
        self.tensors[name].gradient = inputs.T @ gradient
