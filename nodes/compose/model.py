"""A composition's version on a node: the composition, and the models that it asks, as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.compose.check import ModelSignature
from shards.compose.composition import Composition
from shards.compose.errors import CompositionError
from shards.errors import InputError
from shards.specs import Example, TensorSpec
from swarm.errors import InvalidArgument, NotFound, PermissionDenied
from swarm.mesh import Mesh
from swarm.model import ModelInfo, Spec, check_tensors

MOST_RUNS = 64  # at once; others wait


@dataclass
class CompositionModel:
    """What a stage needs of a loaded shard, where that is a composition: nothing is computed but by
    asking. models: by part, and their signatures."""

    info: ModelInfo
    composition: Composition
    models: Mapping[str, ModelInfo]
    signatures: Mapping[str, ModelSignature]
    compute_ms: float
    batchable: bool = False
    weights_version: int = 0
    device: str = "cpu"
    wanted_device: str = "cpu"

    def check(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Raises InputError."""
        try:
            check_tensors(self.info.inputs, dict(tensors), f"composition {self.info.model!r}")
        except InvalidArgument as error:
            raise InputError("", "the composition's inputs", str(error)) from None

    def run(self, tensors: Any, cancel: object = None) -> dict[str, np.ndarray]:
        """A composition asks others, on the event loop: see `nodes.compose.engine`."""
        raise NotImplementedError

    def run_batch(self, requests: Any, cancel: object = None) -> list[dict[str, np.ndarray]]:
        """See `run`."""
        raise NotImplementedError


async def models_of(mesh: Mesh, composition: Composition) -> dict[str, ModelInfo]:
    """The models that it asks, by part. Raises `NotFound`, `Unavailable`, and CompositionError for
    one that cannot be a part."""
    found: dict[str, ModelInfo] = {}
    for part in composition.asks():
        name = f"{part.model}@{part.version}" if part.version else part.model
        try:
            info = found[part.name] = await mesh.model(name)
        except NotFound as error:
            raise NotFound(f"part {part.name!r}: {error}") from None
        except PermissionDenied as error:
            text = f"who serves the composition is issued --asks {part.model} (`swarm auth add`)"
            raise PermissionDenied(f"part {part.name!r}: {error}; {text}") from None
        if info.generates:
            raise CompositionError(part.name, f"{name} is a language model, and makes no tensors")
    return found


def signature_of(info: ModelInfo) -> ModelSignature:
    """What a composition needs to know of a model."""
    return ModelSignature(_specs(info.inputs), _specs(info.outputs), info.batchable)


def _specs(specs: tuple[Spec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            spec.name,
            spec.datatype,
            spec.shape,
            any_rank=spec.any_rank,
            example=Example(spec.usual) if spec.usual else None,
        )
        for spec in specs
    )
