"""A composition runs again, off the serving path, with its models loaded here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodes.compose.model import CompositionModel
from nodes.learned import learned_tensors
from nodes.versions.live_weights import NodeWeights
from nodes.versions.loaded import Loaded, Loading, Repeated, load
from shards.compose.composition import AskPart, Composition, FirstPart
from shards.compose.run import NotAnswered, Tensors, run
from swarm.errors import NotFound

MOST_LOADED = 16  # models, of one weight version each


class RepeatedRuns:
    """loading: as the composition was loaded. Its models are loaded when the first run needs
    them."""

    def __init__(self, loading: Loading, model: CompositionModel) -> None:
        self._loading = loading
        self._model = model
        self._models: dict[tuple[str, int], Loaded] = {}  # by name and weight version
        self._turn = asyncio.Lock()

    async def run(
        self,
        tensors: Tensors,
        steps: Mapping[str, str],
        weights: Mapping[str, Sequence[int]],
    ) -> Repeated:
        """See `Loaded.again`. A part that was left out then is left out again, and one of `first`
        is what it was. Raises `NotFound` for weights that have gone, or that were several."""
        if len(self._models) > MOST_LOADED:  # of many weight versions
            self.close()

        async def ask(part: AskPart, given: Tensors) -> Tensors:
            if steps and part.optional and not steps.get(part.name):
                raise NotAnswered(f"part {part.name!r} was not answered then")
            loaded, made = await self._loaded(part, weights.get(part.name, ())), given
            if loaded.edge is not None:
                made = await asyncio.to_thread(loaded.edge.run, made)
            for stage in range(1, loaded.info.last + 1):
                made = (await loaded.again(stage, made, {}, {})).outputs
            return made

        composition = as_it_was(self._model.composition, steps)
        ran = await run(composition, self._model.signatures, tensors, ask)
        return Repeated(ran.outputs, ran.made)

    async def _loaded(self, part: AskPart, weights: Sequence[int]) -> Loaded:
        name, loading = f"{part.model}@{part.version}", self._loading
        if len(weights) > 1:
            versions = ", ".join(map(str, weights))
            raise NotFound(
                f"part {part.name!r}: weight versions {versions} of {name} answered its requests, "
                "and the record does not say which answered which"
            )
        n = weights[0] if weights else 0
        async with self._turn:
            if (name, n) not in self._models:
                info = await loading.mesh.registry.info(part.model, part.version)
                config = replace(loading.config, model=name)
                loaded = await load(
                    loading.mesh,
                    loading.artifacts,
                    config,
                    info,
                    edge=True,
                    lighter=False,
                    stages=[stage.stage for stage in info.stages],
                    urgent=True,
                )
                self._models[name, n] = loaded
                if n:
                    await self._take(
                        loaded, n, NodeWeights(loading.mesh, loading.artifacts, config)
                    )
            return self._models[name, n]

    async def _take(self, loaded: Loaded, n: int, weights: NodeWeights) -> None:
        info = loaded.info
        try:
            tensors = await learned_tensors(self._loading.mesh, info, n)
            weights.add(loaded)
            await weights.take(info.model, info.version, n, tensors)
        except BaseException:
            self._models.pop((f"{info.model}@{info.version}", n)).close()
            raise

    def close(self) -> None:
        """Free the models."""
        for loaded in self._models.values():
            loaded.close()
        self._models.clear()


def as_it_was(composition: Composition, steps: Mapping[str, str]) -> Composition:
    """The composition whose `first` parts have the one answer that they had. steps: as of
    `Loaded.again`."""

    def taken(part: FirstPart) -> FirstPart:
        then = [name for name in part.of if steps.get(name) and steps[name] == steps.get(part.name)]
        return replace(part, of=tuple(then[:1]) or part.of)

    parts = {
        name: taken(part) if isinstance(part, FirstPart) else part
        for name, part in composition.parts.items()
    }
    return replace(composition, parts=parts)
