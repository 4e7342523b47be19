"""The ways of a request at an edge, and which of them may be taken. Pure.

edge       every stage is computed here: nothing but results leaves
split@K    the stages before K are computed here, and the request enters the mesh at stage K
core       nothing is computed here: the model's input enters the mesh at stage 1
core@jpeg  the same with the input as a JPEG, which stage 1 decodes
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from swarm.model import ModelInfo, Spec

EDGE, CORE, SPLIT, AUTO, OFF = "edge", "core", "split", "auto", "off"
CORE_JPEG, RAW = "core@jpeg", "raw"
_MODE = re.compile(r"off|auto|edge|core(@jpeg)?|split(@[1-9][0-9]{0,3})?")
_SEND = re.compile(r"jpeg:([1-9][0-9]?|100)")
# Bytes a pixel of UltraFace's pictures (320x240), by quality.
_QUALITIES, _PER_PIXEL = (1, 50, 80, 90, 95, 100), (0.03, 0.10, 0.20, 0.29, 0.42, 1.0)
NOWHERE = 0  # the entry of a request that does not enter the mesh


def checked_mode(mode: str) -> str:
    """The setting `--placement`. Raises `InvalidArgument`."""
    if _MODE.fullmatch(mode) is None:
        text = "it is off, auto, edge, core, core@jpeg, split or split@K, K a stage"
        raise InvalidArgument(f"--placement {mode!r}: {text}")
    return mode


def jpeg_quality(send: str) -> int:
    """Of the setting `--send`, `raw` or `jpeg:QUALITY`: 1 to 100, 0 for `raw`. Raises
    `InvalidArgument`."""
    found = _SEND.fullmatch(send)
    if found is None and send != RAW:
        raise InvalidArgument(f"--send {send!r}: it is raw, or jpeg:QUALITY of 1 to 100")
    return 0 if found is None else int(found[1])


def jpeg_bytes(spec: Spec, quality: int) -> int:
    """Usual bytes of a picture input as JPEG."""
    pixels = math.prod(spec.shape) // (3 if 3 in spec.shape else 1)
    at = next(k for k, known in enumerate(_QUALITIES) if known >= quality)
    if at == 0:
        return int(pixels * _PER_PIXEL[0])
    share = (quality - _QUALITIES[at - 1]) / (_QUALITIES[at] - _QUALITIES[at - 1])
    return int(pixels * (_PER_PIXEL[at - 1] + share * (_PER_PIXEL[at] - _PER_PIXEL[at - 1])))


def stages_held(mode: str, stages: Sequence[int]) -> Sequence[int]:
    """The stages of 1 to n that an edge loads for a mode, as far as it has room for them."""
    kind, _, cut = mode.partition("@")
    if kind in (OFF, CORE):
        return ()
    if kind == SPLIT:
        return [stage for stage in stages[:-1] if not cut or stage < int(cut)]
    return stages


@dataclass(frozen=True, slots=True)
class RequestWay:
    """entry: the stage at which the request enters the mesh, or `NOWHERE`. local: the stages that
    are computed here before, in order; stage 0 is the edge's own. sent, answered: bytes of one
    row's tensors towards the mesh and back, as they are without a codec. shows_input: whether an
    input of the model is among what is sent. as_picture: whether it is sent as a JPEG."""

    name: str
    entry: int
    local: tuple[int, ...]
    sent: int = 0
    answered: int = 0
    shows_input: bool = False
    as_picture: bool = False

    @property
    def kind(self) -> str:
        return self.name.partition("@")[0]


@dataclass(frozen=True, slots=True)
class FeaturePrivacy:
    """What may leave this device beside results. picture: the model's input. from_stage: features
    may enter the mesh at this stage and at later ones."""

    picture: bool = False
    from_stage: int = 1

    def allows(self, way: RequestWay) -> bool:
        """Whether nothing leaves by this way that has to stay."""
        if way.entry == NOWHERE:
            return True
        if way.shows_input:
            return self.picture
        return way.entry >= self.from_stage


def ways_of(info: ModelInfo, held: Collection[int], quality: int = 0) -> tuple[RequestWay, ...]:
    """The ways of a model's requests here. held: the stages that are loaded, of which those count
    that follow each other from the first one on. quality: of JPEGs, 0 where none are made."""
    inputs = {spec.name for spec in info.inputs}
    back = sum(spec.nbytes for spec in info.outputs)
    ways: list[RequestWay] = []
    local: tuple[int, ...] = ()
    if info.edge is not None:
        if 0 not in held:
            return ()
        local = (0,)
    elif quality and info.picture:
        sent = sum(
            jpeg_bytes(spec, quality) if spec.name == info.picture else spec.nbytes
            for spec in info.inputs
        )
        ways.append(RequestWay(CORE_JPEG, 1, (), sent, back, shows_input=True, as_picture=True))
    for stage in info.stages:
        name = f"{SPLIT}@{stage.stage}" if local else CORE
        sent = sum(spec.nbytes for spec in stage.receives)
        shows = any(spec.name in inputs for spec in stage.receives)
        ways.append(RequestWay(name, stage.stage, local, sent, back, shows))
        if stage.stage not in held:
            return tuple(ways)
        local = (*local, stage.stage)
    return (*ways, RequestWay(EDGE, NOWHERE, local))
