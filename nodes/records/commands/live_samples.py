"""Samples of a model's traffic, to calibrate with: by its owner's consent, and stored nowhere."""

from __future__ import annotations

import asyncio
import time

import numpy as np

import swarm
from nodes.cli.acts import on_record
from nodes.features import first
from nodes.records.recording import Recording
from swarm.errors import DecodeError, InvalidArgument, NotFound, PermissionDenied
from swarm.model import ModelInfo, unknown_model
from swarm.wire.messages import Features


class Collected:
    """The first `count` samples that pass; `full` is set once they are there."""

    def __init__(self, info: ModelInfo, count: int) -> None:
        self.full = asyncio.Event()
        self.samples = 0
        self._info, self._count = info, count
        self._parts: dict[str, list[np.ndarray]] = {spec.name: [] for spec in info.inputs}

    def take(self, stage: int, data: bytes) -> None:
        """A message of a lane."""
        if stage != 1 or self.full.is_set():
            return
        try:
            tensors = Features.decode(data).tensors
            if not all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
                return  # in shared memory, or at another node
            self._info.check(tensors)
        except (DecodeError, InvalidArgument):
            return
        for name, parts in self._parts.items():
            parts.append(np.array(tensors[name]))  # the message's memory goes
        self.samples += min(len(tensors[name]) for name in self._parts)
        if self.samples >= self._count:
            self.full.set()

    def arrays(self) -> dict[str, np.ndarray]:
        """Each input, axis 0 the sample."""
        return {name: np.concatenate(parts)[: self._count] for name, parts in self._parts.items()}


async def live_samples(
    client: swarm.Mesh, model: str, count: int, seconds: float
) -> dict[str, np.ndarray]:
    """Inputs of NAME or NAME@VERSION as they pass, each with axis 0 the sample; of a model whose
    graph holds its task, as the file takes them that it was split from.

    Raises `PermissionDenied` without consent, `InvalidArgument` where the edge runs layers of the
    model, `NotFound` where fewer pass within `seconds`, ManifestError for a task of a
    newer version, and what `Recording.start` raises.
    """
    name, _, version = model.partition("@")
    present = await client.registry.in_force(name)
    if present is None:
        raise unknown_model(name)
    if not present.state.samples:
        raise PermissionDenied(
            f"no samples may be taken of {name}'s traffic; if its owner agrees: "
            f"swarm model samples {name} on"
        )
    info = await client.registry.info(name, version or present.version)
    if info.edge is not None:
        raise InvalidArgument(
            f"{name}@{info.version} has edge layers: its inputs never leave the edge, and the "
            "features that pass calibrate no whole model; give an .npz file by --calibrate"
        )
    collected = Collected(info, count)
    recording = Recording(
        client.link, client.subjects, name, info.version, 1.0, instead=collected.take
    )
    await recording.start()
    began = time.monotonic()
    try:
        await on_record(client, "sample", name, info.version, count=count)
        async with asyncio.timeout(seconds):
            await collected.full.wait()
    except TimeoutError:
        raise NotFound(
            f"{collected.samples} of {count} samples of {name}@{info.version} passed its lanes "
            f"within {time.monotonic() - began:.0f} s: are requests asked, and do nodes run with "
            "--stored? --wait 5m waits longer, --samples takes fewer"
        ) from None
    finally:
        await recording.stop()
    return _as_the_file_takes(info, collected.arrays())


def _as_the_file_takes(info: ModelInfo, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A graph with its task inside takes bytes; the file that it was made of is quantized."""
    meaning = first(lambda feature: feature.meaning(info))
    return arrays if meaning is None else meaning.as_file_takes(arrays)
