"""Requests whose answers are compared, and what became of each: for benchmarks with faults."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from support.meshes import close

import swarm
from shards.split.split import SplitResult
from swarm.errors import Status
from swarm.requests.request import DURABLE
from swarm.wire.messages import Result

TOLERANCE = 1e-4  # of an output's largest value: shards and whole are optimised apart

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Workload:
    """A split model; its inputs, which are asked in turn; the whole model's outputs for each."""

    model: SplitResult
    inputs: list[Tensors]
    expected: list[Tensors]

    def is_right(self, index: int, outputs: Tensors) -> bool:
        """Whether these are the outputs of request `index`."""
        expected = self.expected[index % len(self.expected)]
        return outputs.keys() == expected.keys() and all(
            close(outputs[name], value, TOLERANCE) for name, value in expected.items()
        )


GRACE = 1.0  # seconds past its budget after which a request without any outcome is lost


@dataclass(slots=True)
class Asked:
    """One request. Times are seconds since the load began; done: 0.0 while there is no outcome.
    status: by gRPC's name, empty without an outcome."""

    sent: float
    done: float = 0.0
    status: str = ""
    message: str = ""
    attempt: int = 0
    wrong: bool = False


async def ask(
    mesh: swarm.Mesh,
    workload: Workload,
    index: int,
    budget: float,
    began: float,
    record: Asked,
    delivery: str = DURABLE,
) -> None:
    inputs = workload.inputs[index % len(workload.inputs)]
    result = await mesh.ask(workload.model.manifest.model, inputs, budget, delivery=delivery)
    _note(result, workload, index, began, record)


async def ask_service(
    mesh: swarm.Mesh, workload: Workload, index: int, budget: float, began: float, record: Asked
) -> None:
    """As `ask`, by whichever node answers for the model."""
    inputs = workload.inputs[index % len(workload.inputs)]
    result = await mesh.ask_service(workload.model.manifest.model, inputs, budget)
    _note(result, workload, index, began, record)


def _note(result: Result, workload: Workload, index: int, began: float, record: Asked) -> None:
    record.done = time.monotonic() - began
    record.status, record.message = str(result.status), result.message
    record.attempt = result.attempt
    if result.status is Status.OK:
        record.wrong = not workload.is_right(index, result.outputs)


def is_lost(request: Asked, budget: float) -> bool:
    """Whether a request ended without any outcome, or long after its budget."""
    return not request.status or request.done - request.sent > budget + GRACE


def kind(message: str) -> str:
    """A message without its numbers, so that messages of one kind are counted together."""
    return re.sub(r"\d+(\.\d+)?", "N", message)[:120]
