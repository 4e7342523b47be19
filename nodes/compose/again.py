"""A composition runs again, off the serving path, with its models loaded here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from nodes.compose.model import CompositionModel
from nodes.versions.loaded import Loaded, Loading, Repeated, load
from shards.compose.composition import AskPart, Composition, FirstPart
from shards.compose.run import NotAnswered, Tensors, run


class RepeatedRuns:
    """loading: as the composition was loaded. Its models are loaded when the first run needs
    them."""

    def __init__(self, loading: Loading, model: CompositionModel) -> None:
        self._loading = loading
        self._model = model
        self._models: dict[str, Loaded] = {}
        self._turn = asyncio.Lock()

    async def run(self, tensors: Tensors, steps: Mapping[str, str]) -> Repeated:
        """See `Loaded.again`. A part that was left out then is left out again, and one of `first`
        is what it was."""

        async def ask(part: AskPart, given: Tensors) -> Tensors:
            if steps and part.optional and not steps.get(part.name):
                raise NotAnswered(f"part {part.name!r} was not answered then")
            loaded, made = await self._loaded(part), given
            if loaded.edge is not None:
                made = await asyncio.to_thread(loaded.edge.run, made)
            for stage in range(1, loaded.info.last + 1):
                made = (await loaded.again(stage, made, {})).outputs
            return made

        composition = as_it_was(self._model.composition, steps)
        ran = await run(composition, self._model.signatures, tensors, ask)
        return Repeated(ran.outputs, ran.made)

    async def _loaded(self, part: AskPart) -> Loaded:
        name, loading = f"{part.model}@{part.version}", self._loading
        async with self._turn:
            if name not in self._models:
                info = await loading.mesh.registry.info(part.model, part.version)
                self._models[name] = await load(
                    loading.mesh,
                    loading.artifacts,
                    replace(loading.config, model=name),
                    info,
                    edge=True,
                    lighter=False,
                    stages=[stage.stage for stage in info.stages],
                    urgent=True,
                )
            return self._models[name]

    def close(self) -> None:
        """Free the models."""
        for loaded in self._models.values():
            loaded.close()


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
