"""Outputs of one model that another needs as they are stay out of the composition's node: the next
one fetches them where they were made (`swarm.transport.referred`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from shards.compose.composition import AskPart, Composition, parts_asked
from shards.compose.run import Tensors
from swarm.fleet.placement import Placement
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.transport.referred import release
from swarm.wire.tensors import REFERRED, Referred

AskPlainly = Callable[[AskPart, Tensors], Awaitable[Mapping[str, Any]]]


def referable(composition: Composition) -> dict[str, dict[str, list[str]]]:
    """By part and output those that nothing but models reads, and the parts that ask these: no
    operator, no condition, no `map`, no kept answers, no output of the composition."""
    parts = composition.parts
    stand_ins = {name for part in parts.values() for name in parts_asked(part)}
    found: dict[str, dict[str, list[str]]] = {}
    needed_here = set(composition.outputs.values())
    for part in parts.values():
        if not _is_plain(part):
            needed_here.update(part.tensors())
            continue
        for ref in part.tensors():
            if ref.part and _is_plain(parts[ref.part]) and ref.part not in stand_ins:
                found.setdefault(ref.part, {}).setdefault(ref.tensor, []).append(part.name)
    for ref in needed_here:
        found.get(ref.part, {}).pop(ref.tensor, None)
    return found


def _is_plain(part: object) -> bool:
    return isinstance(part, AskPart) and not part.each_row and part.cache is None


def pays(placement: Placement, maker: ModelInfo, readers: list[ModelInfo]) -> bool:
    """Whether tensors from the last nodes of one model to the first ones of others are better
    referred to: they would pass through this node as bytes twice, and all can fetch them."""
    if placement.at(maker, maker.last).shared:
        return False
    away = [each for each in readers if not placement.at(each, 1).shared]
    return bool(away) and all(
        each.edge is None and REFERRED in (placement.beyond(each, 1).codecs or ())
        for each in readers
    )


class ReferredTensors:
    """Those of one run."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._made: dict[Referred, tuple[AskPart, Tensors, str]] = {}
        self._plainly: dict[str, asyncio.Task[Mapping[str, Any]]] = {}

    def made(self, part: AskPart, given: Tensors, outputs: Mapping[str, Any]) -> None:
        """What a part answered, which was given these tensors."""
        for name, tensor in outputs.items():
            if type(tensor) is Referred:
                self._made[tensor] = part, given, name

    async def replaced(self, tensors: Tensors, ask: AskPlainly) -> Tensors:
        """The tensors themselves: those that made them are asked once more, each once. Raises what
        `ask` raises."""
        for tensor in tensors.values():
            if isinstance(tensor, Referred):
                part, given, _ = self._made[tensor]
                if part.name not in self._plainly:
                    self._plainly[part.name] = asyncio.create_task(ask(part, given))
                # A wait that is cancelled ends no task, for which others wait too.
                await asyncio.wait([self._plainly[part.name]])
        return {name: self._replaced(tensor) for name, tensor in tensors.items()}

    def _replaced(self, tensor: Any) -> Any:
        if type(tensor) is not Referred:
            return tensor
        part, _, name = self._made[tensor]
        return self._plainly[part.name].result()[name]

    def end(self) -> None:
        """Nobody needs them any more."""
        for task in self._plainly.values():
            task.cancel()
        release(self._link, self._made)
