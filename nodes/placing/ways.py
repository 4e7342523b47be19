"""The ways of a request at an edge, and which of them may be taken. Pure.

edge       every stage is computed here: nothing but results leaves
split@K    the stages before K are computed here, and the request enters the mesh at stage K
core       nothing is computed here: the model's input enters the mesh at stage 1
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from swarm.model import ModelInfo

EDGE, CORE, SPLIT, AUTO, OFF = "edge", "core", "split", "auto", "off"
_MODE = re.compile(r"off|auto|edge|core|split(@[1-9][0-9]{0,3})?")
NOWHERE = 0  # the entry of a request that does not enter the mesh


def checked_mode(mode: str) -> str:
    """The setting `--placement`. Raises `InvalidArgument`."""
    if _MODE.fullmatch(mode) is None:
        text = "it is off, auto, edge, core, split or split@K, K a stage"
        raise InvalidArgument(f"--placement {mode!r}: {text}")
    return mode


def stages_held(mode: str, stages: Sequence[int]) -> Sequence[int]:
    """The stages of 1 to n that an edge loads for a mode, as far as it has room for them."""
    kind, _, cut = mode.partition("@")
    if kind in (OFF, CORE):
        return ()
    if kind == SPLIT:
        return [stage for stage in stages[:-1] if not cut or stage < int(cut)]
    return stages


@dataclass(frozen=True, slots=True)
class Way:
    """entry: the stage at which the request enters the mesh, or `NOWHERE`. local: the stages that
    are computed here before, in order; stage 0 is the edge's own. sent, answered: bytes of one
    row's tensors towards the mesh and back, as they are without a codec. shows_input: whether an
    input of the model is among what is sent."""

    name: str
    entry: int
    local: tuple[int, ...]
    sent: int = 0
    answered: int = 0
    shows_input: bool = False

    @property
    def kind(self) -> str:
        return self.name.partition("@")[0]


@dataclass(frozen=True, slots=True)
class Privacy:
    """What may leave this device beside results. picture: the model's input. from_stage: features
    may enter the mesh at this stage and at later ones."""

    picture: bool = False
    from_stage: int = 1

    def allows(self, way: Way) -> bool:
        """Whether nothing leaves by this way that has to stay."""
        if way.entry == NOWHERE:
            return True
        if way.shows_input:
            return self.picture
        return way.entry >= self.from_stage


def ways_of(info: ModelInfo, held: Collection[int]) -> tuple[Way, ...]:
    """The ways of a model's requests here. held: the stages that are loaded, of which those count
    that follow each other from the first one on."""
    inputs = {spec.name for spec in info.inputs}
    back = sum(spec.nbytes for spec in info.outputs)
    ways: list[Way] = []
    local: tuple[int, ...] = ()
    if info.edge is not None:
        if 0 not in held:
            return ()
        local = (0,)
    for stage in info.stages:
        name = f"{SPLIT}@{stage.stage}" if local else CORE
        sent = sum(spec.nbytes for spec in stage.receives)
        shows = any(spec.name in inputs for spec in stage.receives)
        ways.append(Way(name, stage.stage, local, sent, back, shows))
        if stage.stage not in held:
            return tuple(ways)
        local = (*local, stage.stage)
    return (*ways, Way(EDGE, NOWHERE, local))
