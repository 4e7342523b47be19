"""A composition's version on one node: loaded, and its only stage takes requests as others do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nodes.compose.again import RepeatedRuns
from nodes.compose.asking import PartsAsked
from nodes.compose.engine import CompositionRuns
from nodes.compose.model import CompositionModel, models_of, signature_of
from nodes.extras import missing_extra
from nodes.stage.server import StageServer
from nodes.versions.loaded import Loaded, Loading, Repeated
from nodes.versions.serving import Serving, SharedByStages, server_of
from shards.compose.build import index_file
from shards.compose.check import check
from shards.compose.composition import Composition, from_json
from shards.compose.nearest import IndexAbout, NearestIndex
from shards.compose.part import FILE, PART
from shards.manifest import verify
from swarm.models.asked_versions import check_asked

STAGE = 1
LOOK_EVERY = 0.5  # seconds between looks at which models are served


@dataclass(kw_only=True)
class LoadedComposition(Loaded):
    """A `CompositionModel` in the place of stages."""

    model: CompositionModel
    repeats: RepeatedRuns

    def serving(self, shared: SharedByStages) -> CompositionServing:
        return CompositionServing(shared, self)

    async def again(
        self,
        stage: int,
        tensors: dict[str, np.ndarray],
        steps: Mapping[str, str],
        weights: Mapping[str, Sequence[int]],
    ) -> Repeated:
        return await self.repeats.run(tensors, steps, weights)

    def close(self) -> None:
        self.repeats.close()
        super().close()


class CompositionServing(Serving):
    """A `Serving` whose stage runs a composition."""

    def __init__(self, shared: SharedByStages, loaded: LoadedComposition) -> None:
        self._model = model = loaded.model
        mesh, audit = shared.connection.mesh, shared.audit
        self._asked = PartsAsked(mesh, model.composition, model.models, audit)
        super().__init__(shared, loaded)
        self.add(STAGE)

    @property
    def lacks(self) -> str:
        waits = ", ".join(self._asked.waits_for(time.monotonic()))
        name = f"{self.info.model}@{self.info.version}"
        return f"composition {name} waits for {waits}: no node serves it" if waits else ""

    async def run(self) -> None:
        looking = asyncio.create_task(self._look(), name="which parts are served")
        try:
            await super().run()
        finally:
            looking.cancel()

    async def _look(self) -> None:
        while True:
            self._asked.look(time.monotonic())
            await asyncio.sleep(LOOK_EVERY)

    def rows(self, now: float) -> dict[str, list[dict[str, Any]]]:
        """See `Serving`."""
        of = {"model": self.info.model, "version": self.info.version}
        return {"compositions": [of | row for row in self._asked.rows(now)]}

    def _server(self, stage: int) -> StageServer:
        runs = partial(CompositionRuns, self._asked)
        return server_of(self._shared, self.loaded, stage, self._model, runs=runs)


async def prepare(loading: Loading) -> Callable[[], LoadedComposition]:
    """Raises `NotFound` for a model version that is gone, CompositionError where it does not fit
    any more, ArtifactError."""
    digest = loading.manifest.digest(FILE)

    def read() -> Composition:
        return from_json(verify(loading.fetch(FILE), digest, FILE))

    composition = await asyncio.to_thread(read)
    # As the version tells its outputs: clients take them by their places, too. The JSON is sorted.
    places = {spec.name: place for place, spec in enumerate(loading.info.outputs)}
    outputs = sorted(composition.outputs.items(), key=lambda out: places.get(out[0], len(places)))
    composition = replace(composition, outputs=dict(outputs))
    if names := composition.searches():
        indexes = await asyncio.to_thread(_indexes, loading, sorted(names))
        composition = replace(composition, indexes=indexes)
    await check_asked(loading.info, loading.mesh.registry.info)
    models = await models_of(loading.mesh, composition)
    signatures = {name: signature_of(info) for name, info in models.items()}
    check(composition, signatures)
    shard = loading.manifest.shard(1)
    model = CompositionModel(loading.info, composition, models, signatures, shard.compute_ms)

    def loaded() -> LoadedComposition:
        seconds = time.monotonic() - loading.started
        repeats = RepeatedRuns(loading, model)
        return LoadedComposition(
            loading.info, {}, None, None, seconds, model=model, repeats=repeats
        )

    return loaded


def _indexes(loading: Loading, names: Sequence[str]) -> dict[str, NearestIndex]:
    """Raises CompositionError for an index that is none, `MissingExtra` without its library."""
    manifest, found = loading.manifest, dict[str, NearestIndex]()
    told = manifest.parts[PART.field].get("indexes")
    for name in names:
        about = IndexAbout.of(told.get(name) if isinstance(told, dict) else None, name)

        def fetch(file: str, name: str = name) -> bytes | Path:
            own = index_file(name, file)
            data = loading.fetch(own)
            return data if isinstance(data, Path) else verify(data, manifest.digest(own), own)

        try:
            found[name] = NearestIndex(about, fetch, name)
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"index {name!r} of {manifest.model}") or error from None
    return found
