"""The frozen part of a model, whole: from a model's inputs to the features of its head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nodes.learning.head import HeadLayout, Parameters
from shards.errors import ModelError
from shards.manifest import Manifest, sha256, verify
from shards.runtimes.load import Fetch, StageRuntime, load_stage
from shards.runtimes.ort import OrtRuntime
from shards.weights.head import ModelHead, split_off_head
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo

ROWS = 64  # of one run: a batch that needs little memory


class FrozenModel:
    """layout: of the head behind the features. base: SHA-256 of the last shard's file, whose
    tensors change. features_id: SHA-256 over the frozen layers: versions with the same one give the
    same features. model_id: SHA-256 over features and head: what learners begin from. shipped: the
    parameters that the model came with."""

    def __init__(
        self,
        info: ModelInfo,
        stages: list[StageRuntime],
        last: OrtRuntime | None,
        head: ModelHead,
        base: str,
        features_id: str,
        model_id: str,
        shipped: Parameters,
    ) -> None:
        self.info = info
        self.layout = layout_of(head)
        self.base = base
        self.features_id = features_id
        self.model_id = model_id
        self.shipped = shipped
        self._head = head
        self._stages = stages
        self._last = last
        # Requests may be concatenated along axis 0 only where the model says so.
        self._rows = ROWS if info.batchable else 1

    @classmethod
    def load(
        cls, manifest: Manifest, info: ModelInfo, fetch: Fetch, threads: int = 1
    ) -> FrozenModel:
        """Fetch, verify and load all stages. Blocking: call it in a thread.

        Raises ModelError with the reason for a model that has no head to train, and as
        `load_stage` does.
        """
        shard = manifest.shard(info.last)
        if not shard.file:
            raise ModelError("no head to train: the last stage has no layers")
        data = verify(fetch(shard.file), shard.sha256, shard.file)
        frozen, head, weight, bias = split_off_head(data)
        numbers = ([0] if info.edge is not None else []) + list(range(1, info.last))
        stages = [load_stage(manifest, number, fetch, threads=threads) for number in numbers]
        last = OrtRuntime(frozen, threads=threads) if frozen else None
        before = [manifest.shard(number).sha256 for number in numbers]
        features_id = sha256("\n".join([*before, sha256(frozen)]).encode())
        model_id = sha256("\n".join([*before, shard.sha256]).encode())
        shipped = layout_of(head).parameters(weight, bias)
        return cls(info, stages, last, head, shard.sha256, features_id, model_id, shipped)

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        """The number of samples, along axis 0 of each input. Raises `InvalidArgument` for inputs
        that do not fit the model, naming the first."""
        counts = {array.shape[0] if array.ndim else 0 for array in inputs.values()}
        if len(counts) != 1 or 0 in counts:
            raise InvalidArgument(
                "axis 0 of each input counts the samples: it has to be equally long, and not 0"
            )
        count = counts.pop()
        self.info.check({name: array[: self._rows] for name, array in inputs.items()})
        return count

    def features(self, inputs: Mapping[str, np.ndarray]) -> NDArray[np.float32]:
        """FP32 [n, width] of n samples. Blocking: call it in a thread. Raises as `check` and as
        a stage's `run`."""
        count = self.check(inputs)
        pieces = []
        for first in range(0, count, self._rows):
            rows = {name: a[first : first + self._rows] for name, a in inputs.items()}
            pieces.append(self._run(rows))
        return np.concatenate(pieces)

    def _run(self, tensors: Mapping[str, np.ndarray]) -> NDArray[np.float32]:
        for stage in self._stages:
            tensors = stage.run(tensors)
        if self._last is not None:
            tensors = self._last.run({spec.name: tensors[spec.name] for spec in self._last.inputs})
        return tensors[self._head.features].astype(np.float32).reshape(-1, self.layout.width)

    def stored(self, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Learned parameters in the shapes and datatypes in which the last shard stores them."""
        bias = np.zeros(self.layout.classes, np.float32)
        if self.layout.bias is not None:
            bias = parameters[self.layout.bias]
        return self._head.tensors(self.layout.matrix(parameters), bias)

    def learned(self, stored: Mapping[str, np.ndarray]) -> Parameters:
        """The inverse of `stored`; {} stands for the parameters that the model came with. Raises
        `InvalidArgument` for tensors of another head."""
        if not stored:
            return self.shipped
        try:
            weight = stored[self._head.weight].astype(np.float32)
            bias = stored[self._head.bias].astype(np.float32) if self._head.bias else None
            if self._head.transposed:
                weight = weight.T
            if weight.shape != (self.layout.width, self.layout.classes):
                raise ValueError(f"a weight of shape {weight.shape}")
            return self.layout.parameters(
                weight, None if bias is None else bias.reshape(self.layout.classes)
            )
        except (KeyError, ValueError) as error:
            raise InvalidArgument(f"these are no weights of this model's head: {error}") from None

    def close(self) -> None:
        """Give the memory back."""
        for stage in self._stages:
            stage.close()
        if self._last is not None:
            self._last.close()


def layout_of(head: ModelHead) -> HeadLayout:
    """How a learner lays out the parameters of a model's head."""
    return HeadLayout(head.weight, head.bias or None, head.width, head.classes, head.transposed)
